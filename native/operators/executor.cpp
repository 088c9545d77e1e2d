#include "operators/executor.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "operators/prepare.h"
#include "runtime/memory.h"
#include "runtime/pages.h"
#include "runtime/parallel.h"

namespace descend {
namespace {

bool logging() {
  static const bool on = [] {
    const char* value = std::getenv("DESCEND_LOG");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }();
  return on;
}

// A line of the log about a call, without the time.
std::string describe(const Call& call, const Plan& plan) {
  std::string line = call.operator_name();
  for (size_t i = 0; i < call.op->parameters.size(); ++i) {
    if (call.op->parameters[i].kind != Kind::kTensor) continue;
    line += concat(" ", call.name(static_cast<int>(i)), "=");
    const Tensor* tensor = call.tensor(static_cast<int>(i));
    line += tensor ? dtype_name(tensor->dtype) + to_string(tensor->shape) : "null";
  }
  return line +
         concat(" on ", info(call.product).name, "; ", plan.describe(), "; workspace ", plan.workspace_bytes(), " B");
}

// Who wants to know how long a call took; mostly nobody.
struct Watch {
  std::string log_line = {};
  std::shared_ptr<Meter> meter = {};

  template <class Run>
  void measure(const Run& run) const {
    if (log_line.empty() && meter == nullptr) return run();
    const auto start = std::chrono::steady_clock::now();
    run();
    const auto took = std::chrono::steady_clock::now() - start;
    if (meter != nullptr) meter->add(took);
    if (log_line.empty()) return;
    const std::chrono::duration<double, std::micro> time = took;
    std::fprintf(stderr, "descend: %s; %.1f us\n", log_line.c_str(), time.count());
  }
};

Watch watch(const Call& call, const Plan& plan, const std::shared_ptr<Meter>& meter = nullptr) {
  return {logging() ? describe(call, plan) : std::string(), meter};
}

// A small block of scratch that a thread allocates when it first needs it and keeps. A thread_local array would take
// this much of the stack of every thread in the program, and small stacks have no room for it.
class SmallBlock {
 public:
  static constexpr size_t kBytes = 64 * 1024;

  // Null if there is no memory, or if the thread is ending and this block has been destroyed already.
  static void* of_this_thread() { return block != nullptr ? block : take(); }

 private:
  struct Owner {
    ~Owner() {
      give_pages(std::exchange(block, nullptr), kBytes);
      gone = true;
    }
  };
  static void* take() {
    if (gone || (block = take_pages(kBytes)) == nullptr) return nullptr;
    [[maybe_unused]] thread_local const Owner owner;
    return block;
  }

  static constinit thread_local void* block;
  static constinit thread_local bool gone;
};
constinit thread_local void* SmallBlock::block = nullptr;
constinit thread_local bool SmallBlock::gone = false;

// Scratch for callers that give no workspace: the thread's small block, or pages from the cache. Throws std::bad_alloc.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes <= SmallBlock::kBytes) pointer_ = SmallBlock::of_this_thread();
    if (pointer_ == nullptr) pointer_ = pages_ = take_pages(bytes);
    if (pointer_ == nullptr) throw std::bad_alloc();
  }
  ~Workspace() {
    if (pages_ != nullptr) give_pages(pages_, bytes_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  char* get() const { return static_cast<char*>(pointer_); }

 private:
  size_t bytes_;
  void* pointer_ = nullptr;
  void* pages_ = nullptr;
};

void run_in_own_workspace(const Plan& plan, Addresses addresses) {
  const Workspace workspace(plan.workspace_bytes());
  addresses.workspace = workspace.get();
  plan.run(addresses);
}

}  // namespace

Status Executor::prepare() {
  DESCEND_RETURN_IF_ERROR(make_plan());
  workspace_bytes_ = plan_->workspace_bytes();
  return {};
}

bool Executor::prepare_like(Executor& other) {
  if (!other.planned_ || other.plan_in_flight_ || plan_in_flight_) return false;
  if (!holds(*other.plan_, other.call_, call_)) return false;
  checked_.reset();
  plan_.swap(other.plan_);
  planned_ = std::exchange(other.planned_, false);
  workspace_bytes_ = plan_->workspace_bytes();
  return true;
}

Status Executor::make_plan() {
  checked_.reset();
  planned_ = false;
  if (plan_in_flight_) {
    plan_ = std::make_shared<Plan>();
    plan_in_flight_ = false;
  } else {
    plan_->clear();
  }
  DESCEND_RETURN_IF_ERROR(descend::prepare(call_, plan_.get()));
  planned_ = true;
  return {};
}

void Executor::reset(const Operator& op, Product product, Naming naming) {
  planned_ = false;
  call_.op = &op;
  call_.product = product;
  call_.naming = naming;
  call_.names = nullptr;
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    call_[i].state = Argument::State::kNull;
    call_[i].tensor.data = nullptr;
  }
  meter_ = nullptr;
  addresses_changed_ = false;
  repeatable_ = false;
  spent_ = false;
}

Call Executor::call_now() {
  const std::lock_guard lock(mutex_);
  return call_;
}

void Executor::set_address(int i, void* data) {
  const std::lock_guard lock(mutex_);
  call_[i].tensor.data = data;
  addresses_changed_ = true;
}

Addresses Executor::addresses(void* workspace) const {
  Addresses result;
  if (plan_->workspace_bytes() > 0) {
    const uintptr_t place = reinterpret_cast<uintptr_t>(workspace);
    result.workspace = static_cast<char*>(workspace) + (Plan::kAlignment - place % Plan::kAlignment) % Plan::kAlignment;
  }
  for (size_t i = 0; i < call_.op->parameters.size(); ++i) {
    if (call_.op->parameters[i].kind == Kind::kTensor) result.tensors[i] = static_cast<char*>(call_[i].tensor.data);
  }
  return result;
}

// Every tensor that is used must have memory, and must not overlap the workspace.
Status Executor::check_addresses(const void* workspace, size_t bytes) const {
  const auto begin = reinterpret_cast<intptr_t>(workspace);
  const ByteRange scratch = bytes > 0 ? ByteRange{begin, begin + static_cast<intptr_t>(bytes)} : ByteRange{};
  for (int i = 0; i < static_cast<int>(call_.op->parameters.size()); ++i) {
    const Tensor* tensor = call_.op->parameters[i].kind == Kind::kTensor ? call_.tensor(i) : nullptr;
    if (tensor == nullptr || !is_used(call_, i)) continue;  // one that the call ignores may have any dimensions
    const bool missing = tensor->data == nullptr && !tensor->empty();
    if (!missing && !meets(*tensor, scratch)) continue;
    if (missing) return call_.fail(Code::kRuntimeError, call_.name(i), " has elements, but its data pointer is null.");
    return call_.fail(Code::kParamInvalid, "the workspace overlaps ", call_.name(i),
                      " in memory, but must share nothing with the tensors.");
  }
  return {};
}

Status Executor::launch(const Operator& op, void* workspace, uint64_t workspace_bytes, Stream* stream) {
  const std::lock_guard lock(mutex_);
  if (call_.op != &op) {
    const char* given = call_.naming == Naming::kDocuments ? op.c_name : op.name;
    return failure(Code::kParamInvalid, given, ": the executor was made for ", call_.operator_name(), ".");
  }
  if (spent_) {
    return call_.fail(Code::kParamInvalid, "the executor has been used already; one that is not repeatable runs once.");
  }
  if (addresses_changed_) {
    DESCEND_RETURN_IF_ERROR(make_plan());
    addresses_changed_ = false;
  }
  // If an output now has the memory of an input, the plan may need more than phase 1 asked for.
  const bool outgrown = plan_->workspace_bytes() > workspace_bytes_;
  const size_t needed = outgrown ? 0 : plan_->workspace_bytes();
  if (needed > 0 && workspace == nullptr) {
    return call_.fail(Code::kParamNullptr, "the workspace is null, but must have ", needed, " bytes.");
  }
  if (workspace_bytes < needed) {
    return call_.fail(Code::kParamInvalid, "the workspace has ", workspace_bytes, " bytes, but must have ", needed,
                      ".");
  }
  if (reinterpret_cast<uintptr_t>(workspace) % alignof(std::max_align_t) != 0 && needed > 0) {
    return call_.fail(Code::kParamInvalid, "the workspace must be aligned to ", alignof(std::max_align_t), " bytes.");
  }
  if (const Allocation around = needed > 0 ? find_allocation(workspace) : Allocation{}; around) {
    if (const size_t room = around.room(workspace); room < needed) {
      return call_.fail(Code::kParamInvalid, "the workspace must have ", needed, " bytes, but its allocation has ",
                        room, " from there on.");
    }
  }
  if (checked_ != workspace) {
    DESCEND_RETURN_IF_ERROR(check_addresses(workspace, needed));
    checked_ = workspace;
  }
  if (stream == nullptr) {
    return call_.fail(Code::kRuntimeError, "stream is not one, or has been destroyed already.");
  }
  if (plan_->empty()) {
    if (meter_ != nullptr) meter_->add({});
    spent_ = !repeatable_;
    return {};
  }
  const Addresses where = addresses(workspace);
  const auto step = [where, outgrown, name = call_.operator_name(),
                     watching = watch(call_, *plan_, meter_)](const Plan& plan) -> Status {
    try {
      watching.measure([&] { outgrown ? run_in_own_workspace(plan, where) : plan.run(where); });
      return {};
    } catch (const std::bad_alloc&) {
      return no_memory(name, "the call");
    }
  };
  if (!stream->try_run_inline(plan_->bytes(), [&] { return step(*plan_); })) {
    plan_in_flight_ = true;
    stream->submit({[plan = plan_, step] { return step(*plan); }, plan_->bytes()});
  }
  spent_ = !repeatable_;  // not reached if there was no memory to queue the task
  return {};
}

Status Executor::launch(Stream& stream, Around around) {
  const std::lock_guard lock(mutex_);
  DESCEND_RETURN_IF_ERROR(check_addresses(nullptr, 0));
  if (plan_->empty() && !around.before && !around.after) {
    if (meter_ != nullptr) meter_->add({});
    return {};
  }
  const auto step = [where = addresses(nullptr), around = std::move(around), name = call_.operator_name(),
                     watching = watch(call_, *plan_, meter_)](const Plan& plan) -> Status {
    try {
      watching.measure([&] {
        if (around.before) around.before();
        run_in_own_workspace(plan, where);
        if (around.after) around.after();
      });
      return {};
    } catch (const std::bad_alloc&) {
      return no_memory(name, "the call");
    }
  };
  if (!stream.try_run_inline(plan_->bytes(), [&] { return step(*plan_); })) {
    plan_in_flight_ = true;
    stream.submit({[plan = plan_, step] { return step(*plan); }, plan_->bytes()});
  }
  spent_ = true;
  return {};
}

std::unique_ptr<Executors>& Executors::idle(const Operator& op) {
  thread_local std::vector<std::pair<const Operator*, std::unique_ptr<Executors>>> of_operators;
  for (auto& [other, executors] : of_operators) {
    if (other == &op) return executors;
  }
  return of_operators.emplace_back(&op, nullptr).second;
}

Status Executor::run_now() {
  watch(call_, *plan_).measure([&] { run_in_own_workspace(*plan_, addresses(nullptr)); });
  return {};
}

}  // namespace descend
