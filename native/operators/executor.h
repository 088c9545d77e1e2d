// An executor: one prepared call, ready for phase 2.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "operators/operator.h"
#include "runtime/stream.h"

namespace descend {

class Executor : public std::enable_shared_from_this<Executor> {
 public:
  // Phase 1 is: fill call(), then prepare(). After a failure the executor is good for another try.
  Call& call() { return call_; }
  const Call& call() const { return call_; }
  // A copy, whatever other threads do to its addresses meanwhile.
  Call call_now();
  Status prepare();
  // The same with another's plan, which that one then lacks, if it holds for this call, too. False: it does not.
  bool prepare_like(Executor& other);
  // What phase 2 must be given, wherever the tensors come to lie.
  size_t workspace_bytes() const { return workspace_bytes_; }
  const Plan& plan() const { return *plan_; }

  // Forgets the call, keeping memory for the next one.
  void reset(const Operator& op, Product product, Naming naming);

  // Phase 2 of `op` (another operator's executor is refused): puts the plan on the stream. The executor is then spent,
  // unless it is repeatable. A null stream is one that the caller could not find: the last thing to be refused.
  Status launch(const Operator& op, void* workspace, uint64_t workspace_bytes, Stream* stream);
  // The same for who gives no workspace: it is taken when the plan's turn comes. `around` comes with it, on the stream.
  struct Around {
    std::function<void()> before, after;            // either may be empty; they may throw std::bad_alloc
    std::vector<std::shared_ptr<const void>> kept;  // memory that lives until then
  };
  Status launch(Stream& stream, Around around);
  void set_repeatable() { repeatable_ = true; }
  bool repeatable() const { return repeatable_; }
  bool spent() const { return spent_; }

  // New memory for parameter i from the next launch on, which checks the contract anew.
  void set_address(int i, void* data);

  // A forked child finds it whole, whatever other threads were doing with it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  // Runs the plan on this thread, with a workspace of its own: the functional API, which knows no streams.
  // Throws std::bad_alloc where there is no memory for the workspace.
  Status run_now();

 private:
  Status make_plan();
  Status check_addresses(const void* workspace, size_t bytes) const;
  Addresses addresses(void* workspace) const;

  std::mutex mutex_;  // launches and address changes of one executor take turns
  Call call_;
  std::shared_ptr<Plan> plan_ = std::make_shared<Plan>();
  bool planned_ = false;         // the plan is that of the call
  bool plan_in_flight_ = false;  // a stream may be reading it, or have done so: it is never changed again
  size_t workspace_bytes_ = 0;
  bool addresses_changed_ = false;
  std::optional<const void*> checked_;  // the workspace that the tensors were last found to lie apart from
  std::atomic<bool> repeatable_ = false;
  std::atomic<bool> spent_ = false;
};

// For an operator's calls one after the other: where one is like the one before, whose executor still knows what it
// was, nothing is checked or planned anew.
class Executors {
 public:
  // Those that this thread keeps for an operator; null: none yet, or they are in use.
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
