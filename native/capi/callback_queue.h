// Callbacks of streams, queued for the thread that the program subscribed for the stream (aclrtSubscribeReport). That
// thread takes them one by one and runs them.
#pragma once

#include <cstdint>
#include <memory>

#include "acl/acl_rt.h"
#include "capi/device_stream.h"
#include "runtime/event_record.h"

namespace descend::capi {

// A callback that its stream has reached.
struct Callback {
  aclrtCallback function = nullptr;
  void* data = nullptr;
  Latch done;
  Status status;  // once it is done
};
using CallbackPtr = std::shared_ptr<Callback>;

Status subscribe(uint64_t thread, DeviceStream& stream);
Status unsubscribe(uint64_t thread, DeviceStream& stream);

// Puts a callback on a stream. If it blocks, the stream waits until the callback has run.
Status launch_callback(aclrtCallback function, void* data, bool blocks, const std::shared_ptr<DeviceStream>& stream);

// The next callback for the calling thread, of any of its streams. Waits for one until the deadline.
Status next_callback(const Deadline& deadline, CallbackPtr* next);

// For a stream that is destroyed. Its callbacks that have not run fail.
void abandon_callbacks(DeviceStream& stream);

void forget_callbacks();  // for aclFinalize, while streams may still work
void lock_callbacks();    // for a fork
void unlock_callbacks();
void unlock_callbacks_in_child();

}  // namespace descend::capi
