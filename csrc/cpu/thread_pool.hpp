#pragma once

#include <cstdint>
#include <functional>

namespace cpr::cpu {

// Runs body(task, thread) for tasks [0, tasks) on up to `threads` threads, the caller among them; thread < threads.
// Tasks are handed out in order. The threads are torch's once share_openmp was called, else workers of our own, which
// are started on first use, park between calls, and are forgotten by a forked child, which starts its own. Callable
// from any thread: while one call runs on our own workers, a concurrent one runs its tasks on its own thread alone.
// body must not throw.
void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t task, int thread)>& body);

// Runs on the threads of an OpenMP runtime that is loaded already, torch's: its idle threads spin for a while after
// each of torch's operations and would fight workers of our own for the cores. `path` names the loaded library. False,
// and nothing changed, if it isn't loaded or lacks the entry points. A forked child falls back to workers of its own.
bool share_openmp(const char* path);

}  // namespace cpr::cpu
