#pragma once

#include "core/views.hpp"
#include "cpu/kernels.hpp"

namespace cpr {

// The distance of each row of `view` (its weight, rows, dimension and format) from the row at its place in `saved`; the
// same bits for any number of threads, and of a row wherever it lies.
void distances(const TableView& view, const char* saved, cpu::Distance kind, float* out, int threads);

}  // namespace cpr
