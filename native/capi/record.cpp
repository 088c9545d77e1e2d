// The record of calls: which, how often, how long they took, and which products accept them.
#include "capi/record.h"

#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capi/boundary.h"
#include "capi/state.h"
#include "descend_report.h"
#include "operators/portability.h"
#include "runtime/immortal.h"

namespace descend::capi {
namespace {

constexpr int kMostKinds = 256;  // of one function

using Texts = std::vector<std::pair<std::string, std::string>>;

struct Kept {
  std::string function;
  Product product{};
  Texts arguments;
  Status answer;
  std::array<Status, kProductCount> verdicts;
  bool others = false;
  uint64_t calls = 0;
};
struct Entry : Meter {
  Kept kept;
};

struct Record {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries;
  std::unordered_map<std::string, int> kinds;  // of each function

  void forget() {
    entries.clear();
    kinds.clear();
  }
};
Immortal<Record> record;

template <class T>
void append(std::string& key, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void append(std::string& key, const Dims& dims) {
  append(key, dims.size());
  for (const int64_t dim : dims) append(key, dim);
}
void append(std::string& key, const std::string& text) {
  append(key, text.size());
  key += text;
}

// Every product gives the same answer to calls with the same key.
std::string key_of(const Call& call, const Status& answer) {
  std::string key;
  key.reserve(512);
  append(key, call.op);
  append(key, call.names);
  append(key, call.product);
  append(key, answer.code);
  append(key, answer.sentence);
  for (size_t i = 0; i < call.op->parameters.size(); ++i) {
    const Argument& argument = call.arguments[i];
    append(key, argument.state);
    if (argument.state != Argument::State::kGiven) continue;
    switch (call.op->parameters[i].kind) {
      case Kind::kTensor:
        append(key, argument.tensor.dtype);
        append(key, is_public(argument.tensor.format) ? Format::kND : argument.tensor.format);  // one to the contract
        append(key, argument.tensor.offset);
        append(key, argument.tensor.shape);
        append(key, argument.tensor.strides);
        append(key, argument.tensor.storage_shape);
        break;
      case Kind::kIntArray:
      case Kind::kBoolArray:
        append(key, argument.list);
        break;
      case Kind::kInt:
        append(key, argument.integer);
        break;
      case Kind::kFloat:
        append(key, argument.real);
        break;
      case Kind::kBool:
        append(key, argument.flag);
        break;
      case Kind::kString:
        append(key, argument.text);
        break;
    }
  }
  return key;
}

std::string describe(const Tensor& tensor) {
  std::string text = dtype_name(tensor.dtype) + to_string(tensor.shape);
  const Dims contiguous = contiguous_strides(tensor.shape);
  for (uint64_t i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape[i] == 1 || tensor.strides[i] == contiguous[i]) continue;
    text += concat(" strides ", to_string(tensor.strides));
    break;
  }
  if (!is_public(tensor.format)) text += concat(" ", format_name(tensor.format));
  return text;
}

// A number in as few digits as tell it from all others.
std::string digits_of(double number) {
  for (int digits = 6;; ++digits) {  // std::to_chars is not in GCC 8's library, for which wheels are built
    std::string text = in_digits(number, digits);
    if (digits == 17 || std::strtod(text.c_str(), nullptr) == number) return text;
  }
}

std::string describe(Kind kind, const Argument& argument) {
  if (argument.state == Argument::State::kForeign) return "not a handle of this library";
  switch (kind) {
    case Kind::kTensor:
      return describe(argument.tensor);
    case Kind::kIntArray:
    case Kind::kBoolArray:
      return to_string(argument.list);
    case Kind::kInt:
      return std::to_string(argument.integer);
    case Kind::kFloat:
      return digits_of(argument.real);
    case Kind::kBool:
      return argument.flag ? "true" : "false";
    case Kind::kString:
      return concat("\"", argument.text, "\"");
  }
  return {};
}

Texts describe_arguments(const Call& call) {
  Texts texts;
  for (size_t i = 0; i < call.op->parameters.size(); ++i) {
    if (call.arguments[i].state == Argument::State::kNull) continue;
    texts.emplace_back(call.name(static_cast<int>(i)), describe(call.op->parameters[i].kind, call.arguments[i]));
  }
  return texts;
}

// Asks the products that have not refused such a call yet.
void update_verdicts(Kept& kept, const Call& call, const Status& answer, bool is_read) {
  // A failure outside the contract, such as a null workspaceSize, is the same on every product.
  const bool of_contract = answer.ok() || (is_read && !verdict_on(call.product, call).ok());
  for (int i = 0; i < kProductCount; ++i) {
    if (!kept.verdicts[i].ok()) continue;
    const Product product = products()[i].product;
    kept.verdicts[i] = product == call.product || !of_contract ? answer : verdict_on(product, call);
  }
}

std::shared_ptr<Entry> find_entry(const Call& call, const Status& answer, bool is_read) {
  std::string key = key_of(call, answer);
  if (const auto found = record->entries.find(key); found != record->entries.end()) return found->second;
  const std::string function = call.operator_name();
  const bool others = record->kinds[function] >= kMostKinds;
  if (others) {
    key = concat("others of ", function, " ", static_cast<int>(call.product), " ", static_cast<int>(answer.code));
  }
  auto entry = others ? record->entries[key] : nullptr;
  if (entry == nullptr) {
    entry = std::make_shared<Entry>();
    entry->kept = {function, call.product, others ? Texts() : describe_arguments(call), answer, {}, others};
  }
  update_verdicts(entry->kept, call, answer, is_read);
  record->entries[key] = entry;
  if (!others) ++record->kinds[function];
  return entry;
}

void show(const Kept& kept, uint64_t runs, uint64_t nanoseconds, void (*each)(const descendRecordedCall*, void*),
          void* context) {
  std::vector<descendArgument> arguments;
  for (const auto& [name, value] : kept.arguments) arguments.push_back({name.c_str(), value.c_str()});
  std::array<descendVerdict, kProductCount> verdicts;
  for (int i = 0; i < kProductCount; ++i) {
    const Status& verdict = kept.verdicts[i];
    verdicts[i] = {products()[i].name, static_cast<aclnnStatus>(verdict.code), verdict.sentence.c_str()};
  }
  const descendRecordedCall call{kept.function.c_str(),
                                 info(kept.product).name,
                                 arguments.data(),
                                 arguments.size(),
                                 kept.calls,
                                 runs,
                                 nanoseconds,
                                 static_cast<aclnnStatus>(kept.answer.code),
                                 kept.answer.sentence.c_str(),
                                 verdicts.data(),
                                 verdicts.size(),
                                 kept.others};
  each(&call, context);
}

}  // namespace

std::shared_ptr<Meter> record_call(const Call& call, const Status& answer, bool is_read) noexcept {
  try {
    const std::lock_guard lock(record->mutex);
    auto entry = find_entry(call, answer, is_read);
    entry->kept.calls += 1;
    return entry;
  } catch (const std::exception&) {  // there is no memory: the record lacks this call
    return nullptr;
  }
}

void lock_record() { record->mutex.lock(); }
void unlock_record() { record->mutex.unlock(); }
void unlock_record_in_child() {
  record->forget();
  record->mutex.unlock();
}

}  // namespace descend::capi

using namespace descend;
using namespace descend::capi;

aclError descendRecordCalls(int32_t on) {
  return boundary("descendRecordCalls", [&]() -> Status {
    if (on != 0 && on != 1) return failure(Code::kInvalidParam, "on is ", on, ", but must be 0 or 1.");
    (void)state();  // which follows forks
    const std::lock_guard lock(record->mutex);
    if (on == 1) record->forget();
    recording_calls = on == 1;
    return {};
  });
}

aclError descendRecordedCalls(void (*each)(const descendRecordedCall* call, void* context), void* context) {
  return boundary("descendRecordedCalls", [&]() -> Status {
    if (each == nullptr) return null_argument("each");
    std::vector<std::pair<Kept, std::shared_ptr<Entry>>> all;  // nothing is locked while each() runs
    {
      const std::lock_guard lock(record->mutex);
      for (const auto& [key, entry] : record->entries) all.emplace_back(entry->kept, entry);
    }
    for (const auto& [kept, entry] : all) show(kept, entry->runs, entry->nanoseconds, each, context);
    return {};
  });
}
