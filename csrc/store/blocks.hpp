// Tasks of one call shared with helper threads.
#pragma once

#include <cstddef>
#include <functional>

namespace cpr::store {

// Runs body(task, thread) for tasks [0, tasks), on this thread (0) and up to threads - 1 helpers of this call alone;
// returns when all have ended. Nobody waits for a helper that has not woken: it finds no task left and touches nothing
// of the caller's. Without a thread to be had this one runs them all. body must not throw.
void run_blocks(size_t tasks, size_t threads, std::function<void(size_t task, size_t thread)> body);

}  // namespace cpr::store
