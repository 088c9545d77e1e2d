// The record of calls behind descend_report.h.
#pragma once

#include <atomic>
#include <memory>

#include "operators/meter.h"
#include "operators/operator.h"

namespace descend::capi {

inline std::atomic<bool> recording_calls = false;
inline bool is_recording() { return recording_calls.load(std::memory_order_relaxed); }

// Records a first phase, or a call by name, and its answer. If its arguments could not be read, this is the answer of
// every product. The time of the runs is to be added to the returned meter. Null if there is no memory.
std::shared_ptr<Meter> record_call(const Call& call, const Status& answer, bool is_read = true) noexcept;

// For a fork. The child's record is empty.
void lock_record();
void unlock_record();
void unlock_record_in_child();

}  // namespace descend::capi
