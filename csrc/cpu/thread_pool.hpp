#pragma once

#include <cstdint>
#include <functional>

namespace cpr::cpu {

// Runs body(task, thread) for tasks [0, tasks) on up to `threads` threads, the caller among them; thread < threads.
// Tasks are handed out in order. Workers are started on first use, park between calls, and are forgotten by a forked
// child, which starts its own. Callable from any thread: while one call runs, a concurrent one runs its tasks on its
// own thread alone. body must not throw.
void parallel_for(int64_t tasks, int threads, const std::function<void(int64_t task, int thread)>& body);

}  // namespace cpr::cpu
