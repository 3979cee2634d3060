#pragma once

// Where the time from the start of a program to its first step goes (fsdp-train --profile-start): phases one after
// another, and shorter ones inside them. A record belongs to the thread that began it; on all others, and in
// programs that began none, these functions do nothing.

#include <cstddef>
#include <string>
#include <vector>

namespace fsdp::util {

struct StartPhase {
  std::string name;
  double seconds = 0;
};

/// Of CLOCK_MONOTONIC, which all processes of a host share.
double monotonic_seconds();

/// Time since this process was created, program loading included. The kernel tells it to a hundredth of a second; where
/// the process has computed all the time, it is exact.
double process_age_seconds();

/// Begins the record with the phases that were over at `until` on monotonic_seconds(); "command line and config" follows.
void begin_start_record(std::vector<StartPhase> so_far, double until);

/// Ends the phase before; what follows belongs to `name`, whose time adds up if there was one of that name before.
void start_phase(const char* name);

/// During its lifetime, time belongs to `name` and not to the phase around it.
class InnerStartPhase {
 public:
  explicit InnerStartPhase(const char* name);
  ~InnerStartPhase();
  InnerStartPhase(const InnerStartPhase&) = delete;
  InnerStartPhase& operator=(const InnerStartPhase&) = delete;

 private:
  size_t outer_;
};

/// Ends the last phase; later calls change nothing.
void end_start_record();

/// In the order of their begin; empty without a record.
std::vector<StartPhase> start_record();

}  // namespace fsdp::util
