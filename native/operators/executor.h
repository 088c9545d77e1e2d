// An executor: one prepared call, ready for phase 2.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "operators/meter.h"
#include "operators/operator.h"
#include "operators/plan.h"
#include "runtime/stream.h"

namespace descend {

class Executor : public std::enable_shared_from_this<Executor> {
 public:
  // Phase 1: fill in call(), then prepare(). After a failure the executor can be used again.
  Call& call() { return call_; }
  const Call& call() const { return call_; }
  // A copy; safe while other threads set addresses.
  Call call_now();
  Status prepare();
  // prepare() with the plan of another executor, if that holds for this call too. The other loses its plan. False if it
  // does not hold.
  bool prepare_like(Executor& other);
  // The size that phase 2 must be given.
  size_t workspace_bytes() const { return workspace_bytes_; }
  const Plan& plan() const { return *plan_; }

  // Clears the call, and keeps memory for the next one.
  void reset(const Operator& op, Product product, Naming naming);

  // Phase 2 of `op`: puts the plan on the stream. Fails if the executor was made for another operator. Afterwards the
  // executor is spent, unless it is repeatable. A null stream stands for a handle that names none; it is refused last.
  Status launch(const Operator& op, void* workspace, uint64_t workspace_bytes, Stream* stream);
  // The same for a caller without a workspace: it is allocated when the stream reaches the plan. `around` runs with the
  // plan, on the stream.
  struct Around {
    std::function<void()> before, after;            // either may be empty; they may throw std::bad_alloc
    std::vector<std::shared_ptr<const void>> kept;  // memory that is kept until the plan has run
  };
  Status launch(Stream& stream, Around around);
  void set_repeatable() { repeatable_ = true; }
  bool repeatable() const { return repeatable_; }
  bool spent() const { return spent_; }

  // Sets the memory of parameter i from the next launch on. That launch checks the contract again.
  void set_address(int i, void* data);

  // The times of the next launches are added there.
  void set_meter(std::shared_ptr<Meter> meter) { meter_ = std::move(meter); }

  // So that a forked child finds it whole, whatever other threads were doing.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  // Runs the plan on this thread, with a workspace of its own, for the functional API, which has no streams.
  // Throws std::bad_alloc if there is no memory for the workspace.
  Status run_now();

 private:
  Status make_plan();
  Status check_addresses(const void* workspace, size_t bytes) const;
  Addresses addresses(void* workspace) const;

  std::mutex mutex_;  // launches and address changes of one executor take turns
  Call call_;
  std::shared_ptr<Plan> plan_ = std::make_shared<Plan>();
  bool planned_ = false;         // the plan was made for the call
  bool plan_in_flight_ = false;  // a stream uses it or has used it: it is not changed any more
  size_t workspace_bytes_ = 0;
  bool addresses_changed_ = false;
  std::shared_ptr<Meter> meter_;
  std::optional<const void*> checked_;  // the workspace last found not to overlap the tensors
  std::atomic<bool> repeatable_ = false;
  std::atomic<bool> spent_ = false;
};

// Two executors that successive calls of an operator use in turn. If a call is like the one before, it takes over that
// one's plan, and nothing is checked or planned again.
class Executors {
 public:
  // The executors that this thread keeps for an operator. Null if there are none yet, or while they are in use.
  static std::unique_ptr<Executors>& idle(const Operator& op);

  // For the next call.
  Executor& reset(const Operator& op, Product product, Naming naming) {
    now_ = 1 - now_;
    current().reset(op, product, naming);
    return current();
  }
  Executor& current() { return executors_[now_]; }
  Status prepare() { return current().prepare_like(executors_[1 - now_]) ? Status{} : current().prepare(); }

 private:
  std::array<Executor, 2> executors_;
  size_t now_ = 0;
};

}  // namespace descend
