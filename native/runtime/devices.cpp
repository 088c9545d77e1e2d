#include "runtime/devices.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace descend {
namespace {

constexpr Code kNoDevice{207004};

std::atomic<const std::vector<int32_t>*> known{nullptr};
std::atomic<int32_t> in_machine{1};

// The number that the text is; -1 if it is not a whole number.
int64_t read_number(std::string_view text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0 ? number : -1;
}

Status read_count(int32_t* count) {
  const char* text = std::getenv("DESCEND_DEVICES");
  *count = 1;
  if (text == nullptr || *text == '\0') return {};
  const int64_t number = read_number(text);
  if (number < 1 || number > kMaxDevices) {
    return failure(Code::kInvalidParam, "DESCEND_DEVICES is \"", text, "\", but must be a number from 1 to ",
                   kMaxDevices, ".");
  }
  *count = static_cast<int32_t>(number);
  return {};
}

// CANN reads the list up to the first entry that is no device of the machine.
Status read_visible(int32_t count, std::vector<int32_t>* numbers) {
  const char* text = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int32_t device = 0; device < count; ++device) numbers->push_back(device);
    return {};
  }
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const int64_t number = read_number(rest.substr(0, comma));
    if (number < 0 || number >= count) break;
    const auto device = static_cast<int32_t>(number);
    if (!numbers->empty() && device <= numbers->back()) {
      return failure(kNoDevice, "ASCEND_RT_VISIBLE_DEVICES is \"", text, "\", but each number must be above the last.");
    }
    numbers->push_back(device);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (!numbers->empty()) return {};
  return failure(kNoDevice, "ASCEND_RT_VISIBLE_DEVICES is \"", text, "\", but must begin with a number below ", count,
                 ", the number of devices (DESCEND_DEVICES).");
}

}  // namespace

Status visible_devices(const std::vector<int32_t>** numbers) {
  *numbers = known.load(std::memory_order_acquire);
  if (*numbers != nullptr) return {};
  int32_t count = 0;
  auto read = std::make_unique<std::vector<int32_t>>();
  DESCEND_RETURN_IF_ERROR(read_count(&count));
  DESCEND_RETURN_IF_ERROR(read_visible(count, read.get()));
  in_machine.store(count, std::memory_order_relaxed);
  // If several threads ask at once, the first result counts for all.
  if (known.compare_exchange_strong(*numbers, read.get(), std::memory_order_acq_rel)) *numbers = read.release();
  return {};
}

int32_t machine_devices() { return in_machine.load(std::memory_order_relaxed); }

int32_t number_of(int32_t device) {
  return check_device(device).ok() ? (*known.load(std::memory_order_acquire))[static_cast<size_t>(device)] : -1;
}

int32_t device_of(int32_t number) {
  const std::vector<int32_t>* numbers = nullptr;
  if (!visible_devices(&numbers).ok()) return -1;
  const auto found = std::find(numbers->begin(), numbers->end(), number);
  return found == numbers->end() ? -1 : static_cast<int32_t>(found - numbers->begin());
}

Status check_device(int32_t device) {
  const std::vector<int32_t>* numbers = nullptr;
  DESCEND_RETURN_IF_ERROR(visible_devices(&numbers));
  const auto count = static_cast<int32_t>(numbers->size());
  if (device >= 0 && device < count) return {};
  constexpr const char* kSetting = " (DESCEND_DEVICES sets how many there are).";
  if (count == 1) {
    return failure(Code::kInvalidDevice, "device ", device, " does not exist; the only one is 0", kSetting);
  }
  return failure(Code::kInvalidDevice, "device ", device, " does not exist; there are those from 0 to ", count - 1,
                 kSetting);
}

}  // namespace descend
