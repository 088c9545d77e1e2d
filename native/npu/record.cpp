#include "npu/record.h"

#include <c10/core/ScalarType.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_map>

namespace descend::npu {

struct Recording::Entry {
  std::string op;
  Tensors tensors;
  bool others = false;
  std::atomic<uint64_t> calls = 0, errors = 0, nanoseconds = 0;
};

namespace {

constexpr size_t kMostKinds = 256;   // of one operator
constexpr size_t kMostOfList = 8;    // the first tensors of a list are compared and shown
constexpr size_t kMostLength = 200;  // of a shape that is shown

struct Record {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Recording::Entry>> entries;
  std::unordered_map<std::string, size_t> kinds;  // of each operator
};

Record& all() {
  static Record* const record = new Record;  // threads may still call when the process ends
  return *record;
}

void forget() {
  all().entries.clear();
  all().kinds.clear();
}

void lock_for_fork() { all().mutex.lock(); }
void unlock_in_parent() { all().mutex.unlock(); }
void unlock_in_child() {
  forget();
  all().mutex.unlock();
}

template <class T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

bool may_hold_tensors(const c10::IValue& value) {
  return value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList();
}

// Calls each(tensor, index) for every tensor of an argument, but only for the first kMostOfList of a list. `index` is
// the tensor's place in its list.
template <class Each>
void for_each_tensor(const c10::IValue& value, int64_t place, const Each& each) {
  if (value.isTensor()) {
    each(value.toTensor(), place);
  } else if (value.isTensorList()) {
    const auto tensors = value.toTensorList();
    for (size_t i = 0; i < std::min(tensors.size(), kMostOfList); ++i) each(tensors.get(i), static_cast<int64_t>(i));
  } else if (may_hold_tensors(value)) {
    const auto elements = value.toListRef();
    for (size_t i = 0; i < std::min(elements.size(), kMostOfList); ++i) {
      for_each_tensor(elements[i], static_cast<int64_t>(i), each);
    }
  }
}

size_t length_of(const c10::IValue& list) {
  return list.isTensorList() ? list.toTensorList().size() : list.toList().size();
}

std::string key_of(const c10::OperatorHandle& op, const c10::IValue* arguments, size_t count) {
  std::string key;
  key.reserve(256);
  append(key, &op.operator_name());
  for (size_t i = 0; i < count; ++i) {
    if (may_hold_tensors(arguments[i])) append(key, length_of(arguments[i]));
    for_each_tensor(arguments[i], 0, [&](const at::Tensor& tensor, int64_t) {
      append(key, static_cast<uint32_t>(i));
      if (!tensor.defined()) return;
      append(key, tensor.scalar_type());
      append(key, tensor.layout());
      append(key, tensor.dim());
      for (const int64_t size : tensor.sizes()) append(key, size);
    });
  }
  return key;
}

// As in Python: float32[2, 3].
std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::string text(c10::getDtypeNames(tensor.scalar_type()).first);
  text += "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (text.size() > kMostLength) return text + ", ...]";
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  }
  text += "]";
  if (tensor.layout() != at::kStrided) text += tensor.layout() == at::kSparse ? " sparse" : " sparse compressed";
  return text;
}

Tensors describe(const c10::OperatorHandle& op, const c10::IValue* arguments, size_t count) {
  Tensors texts;
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = op.schema().arguments()[i].name();
    const size_t before = texts.size();
    for_each_tensor(arguments[i], -1, [&](const at::Tensor& tensor, int64_t place) {
      texts.emplace_back(place < 0 ? name : name + "[" + std::to_string(place) + "]", describe(tensor));
    });
    const size_t length = texts.size() > before && arguments[i].isList() ? length_of(arguments[i]) : 0;
    if (length > kMostOfList)
      texts.emplace_back(name + "[...]", "and " + std::to_string(length - kMostOfList) + " more");
  }
  return texts;
}

std::shared_ptr<Recording::Entry> find(const c10::OperatorHandle& op, const c10::IValue* arguments, size_t count) {
  std::string key = key_of(op, arguments, count);
  Record& record = all();
  const std::lock_guard lock(record.mutex);
  if (const auto found = record.entries.find(key); found != record.entries.end()) return found->second;
  const std::string name = c10::toString(op.operator_name());
  const bool others = record.kinds[name] >= kMostKinds;
  if (others) key = "others of " + name;
  auto& entry = record.entries[key];
  if (entry == nullptr) {
    entry = std::make_shared<Recording::Entry>();
    entry->op = name;
    entry->others = others;
    if (!others) {
      entry->tensors = describe(op, arguments, count);
      ++record.kinds[name];
    }
  }
  return entry;
}

}  // namespace

std::atomic<bool> Recording::on_ = false;
thread_local Recording* Recording::innermost_ = nullptr;

void record(bool on) {
  static const int followed = pthread_atfork(lock_for_fork, unlock_in_parent, unlock_in_child);
  (void)followed;
  const std::lock_guard lock(all().mutex);
  if (on) forget();
  Recording::on_ = on;
}

std::vector<Recorded> recorded() {
  const std::lock_guard lock(all().mutex);
  std::vector<Recorded> found;
  for (const auto& [key, entry] : all().entries) {
    found.push_back({entry->op, entry->tensors, entry->others, entry->calls, entry->errors, entry->nanoseconds});
  }
  return found;
}

void Recording::start(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t arguments) noexcept {
  try {
    entry_ = find(op, stack.data() + (stack.size() - arguments), arguments);
  } catch (const std::exception&) {  // there is no memory: the report lacks this call
    return;
  }
  exceptions_ = std::uncaught_exceptions();
  outer_ = innermost_;
  innermost_ = this;
  entered_ = begun_ = Clock::now();
}

void Recording::finish() noexcept {
  const auto now = Clock::now();
  innermost_ = outer_;
  if (outer_ != nullptr) outer_->within_ += now - entered_;
  const auto own = std::max(now - begun_ - within_, Clock::duration::zero());
  entry_->calls.fetch_add(1, std::memory_order_relaxed);
  entry_->errors.fetch_add(std::uncaught_exceptions() > exceptions_ ? 1 : 0, std::memory_order_relaxed);
  entry_->nanoseconds.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(own).count()),
                                std::memory_order_relaxed);
}

}  // namespace descend::npu
