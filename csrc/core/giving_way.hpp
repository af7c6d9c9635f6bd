#pragma once

#include <algorithm>
#include <ctime>

namespace cpr {

// Whether this thread gives way to others of its machine. Unlike a nice value it works between processes whose groups
// share the cores evenly, and a thread that pauses holds nothing that an update or a lookup waits for.
inline thread_local bool gives_way = false;

// The pauses of a loop of background work: after a piece for which the thread had to wait for a core it rests for three
// times as long as the piece took. Without effect in a thread that doesn't give way. Used by one thread.
class GivingWay {
 public:
  GivingWay() { begin(); }

  // Called often, where nobody waits for what the thread holds.
  void worked() {
    if (!gives_way) return;
    const double wall = seconds(CLOCK_MONOTONIC) - wall_;
    if (wall < kPiece) return;
    if (wall > kWaited * (seconds(CLOCK_THREAD_CPUTIME_ID) - busy_)) {
      const timespec pause{0, static_cast<long>(1e9 * std::min(kRest * wall, kLongest))};
      nanosleep(&pause, nullptr);
    }
    begin();
  }

 private:
  static constexpr double kPiece = 0.0005;  // seconds
  static constexpr double kWaited = 1.1;
  static constexpr double kRest = 3.0;
  static constexpr double kLongest = 0.1;  // seconds

  static double seconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  void begin() {
    if (!gives_way) return;
    wall_ = seconds(CLOCK_MONOTONIC);
    busy_ = seconds(CLOCK_THREAD_CPUTIME_ID);
  }

  double wall_ = 0.0;
  double busy_ = 0.0;
};

}  // namespace cpr
