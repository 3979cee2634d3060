#pragma once

// Times the phases from the start of a program to its first step (fsdp-train --profile-start): phases one
// after another, and shorter ones nested in them. A record belongs to the thread that began it. These
// functions do nothing on other threads, and in programs that began no record.

#include <cstddef>
#include <string>
#include <vector>

namespace fsdp::util {

struct StartPhase {
  std::string name;
  double seconds = 0;
};

/// Reads CLOCK_MONOTONIC, which all processes of a host share.
double monotonic_seconds();

/// Time since this process was created, program loading included. The kernel reports it to a hundredth of a
/// second; for a process that has computed all the time, the result is exact.
double process_age_seconds();

/// Begins the record with the phases before `until` (monotonic_seconds()); "command line and config" follows.
void begin_start_record(std::vector<StartPhase> so_far, double until);

/// Ends the current phase and begins the phase `name`. The times of phases of the same name are added.
void start_phase(const char* name);

/// During the object's lifetime, time counts for `name` and not for the phase around it.
class InnerStartPhase {
 public:
  explicit InnerStartPhase(const char* name);
  ~InnerStartPhase();
  InnerStartPhase(const InnerStartPhase&) = delete;
  InnerStartPhase& operator=(const InnerStartPhase&) = delete;

 private:
  size_t outer_;
};

/// Ends the last phase and the record. Later calls change nothing.
void end_start_record();

/// Returns the phases in the order in which they began; empty if there is no record.
std::vector<StartPhase> start_record();

}  // namespace fsdp::util
