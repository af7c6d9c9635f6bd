#pragma once

#include <cstdint>

#include "cuda/args.hpp"

// What the kernels are given that read and write rows and trackers outside of updates.
namespace cpr::cuda {

enum class RowStep {
  // `rows` [n], local, no row twice; weight [n, dim] and state [n, state_size] tightly packed.
  kWrite,  // weight and state where given; the word becomes `word`, the drift 0
  kPut,    // likewise; word bits are added, the drift stays
  kRead,   // to weight and state
  kMark,   // dirty; rows may come twice
  kMerge,  // words and drifts of a snapshot that was given up are added
  // Rows [begin, begin + n); words, drifts and state [n].
  kReset,        // initial weight and state, the word's bits in `word` stay, the drift becomes 0
  kDiscard,      // weight and state become NaN
  kKeep,         // the word's bits in `word` stay, the drift becomes 0
  kMarkAll,      // dirty
  kClear,        // the word becomes 0, the drift stays
  kClaimSlots,   // words: of the rows that are listed the lowest gets a slot
  kReplace,      // words replace the row's, which were cleared
  kReadWords,    // to words
  kReadDrifts,   // to drifts
  kWriteDrifts,  // from drifts
  kReadState,    // to state
  kReadListed    // slots [begin, begin + n): the listed row or kEmptySlot to words
};

struct RowArgs {
  RowStep step = RowStep::kRead;
  const TableRecord* table = nullptr;
  int64_t begin = 0;
  int64_t n = 0;
  const int64_t* rows = nullptr;
  char* weight = nullptr;
  float* state = nullptr;
  uint32_t* words = nullptr;
  float* drifts = nullptr;
  uint32_t word = 0;
  float low = 0.0F;  // kReset
  float high = 0.0F;
  float initial_state = 0.0F;
};

}  // namespace cpr::cuda
