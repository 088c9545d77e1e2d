// The runtime under a fuzzer: every object that the input makes, and what each call must return because of that.
#pragma once

#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "bytes.h"

namespace fuzz {

inline const size_t kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
inline constexpr size_t kReserved = size_t{2} << 20;  // of addresses
inline constexpr int kDevices = 3;                    // where one thread makes all calls; else 1 is used

class Runtime {
 public:
  explicit Runtime(Bytes& bytes) : bytes_(bytes) {}
  // Compares memory with what was written to it, and ends all that is left.
  ~Runtime();

  // One call, or a few that belong together.
  void step();

 private:
  // A stream, an event, a context or physical memory: `handle` names it as long as it is alive.
  struct Object {
    void* handle = nullptr;
    bool alive = false;
    bool recorded = false, timed = true;  // of events
    size_t pages = 0, pids = 0;           // of physical memory
    uint64_t shareable = 0;               // of physical memory that was exported
    bool for_anyone = false, for_peer = false;
    int32_t device = 0;      // of streams and contexts
    bool in_default = true;  // of streams: in the default context of their device
  };
  struct Block {
    char* data = nullptr;
    bool on_host = false;
    int32_t device = 0;
    std::vector<char> contents;  // what must be there
  };
  // Memory that is shared by a key.
  struct Share {
    Block* block = nullptr;
    char key[65] = {};
    size_t size = 0, exports = 0, pids = 0;
    bool anyone = false, for_self = false;
    char* imported = nullptr;
  };

  Bytes& bytes_;
  std::vector<Object> streams_, events_, contexts_, physical_;
  std::vector<std::unique_ptr<Block>> blocks_;
  char* reservation_ = nullptr;
  std::map<size_t, size_t> mapped_;  // first page in the reservation -> index of the physical memory
  std::vector<std::unique_ptr<Share>> shares_;
  int32_t device_ = 0;       // the current one
  void* context_ = nullptr;  // the current one; null: the default one of the device
  int uses_[kDevices] = {};  // calls of aclrtSetDevice that no reset has undone
  bool peers_[kDevices][kDevices] = {};
  bool has_imports_ = false;  // in the second process
  int calls_expected_ = 0;
  std::atomic<int> calls_{0};

  Object& pick(std::vector<Object>& objects);
  Object pick_stream();
  Block* pick_block();
  void settle();
  void make(std::vector<Object>& objects, const char* who, const std::function<int(void**)>& create);
  void destroy(std::vector<Object>& objects, const char* who, const std::function<int(void*)>& end);

  void rarer_step(int64_t kind);
  void streams();
  void events();
  void event_times();
  void contexts();
  void devices();
  void set_device(int32_t device);
  void reset_device(int32_t device);
  void end_device(int32_t device);
  void peers();
  void ask_devices();
  void share_memory();
  const char* pick_key(Share** share);
  void export_memory();
  void allow_import();
  void import_memory();
  void close_shared();
  void forget_shares(const Block* block);
  void share_handles();
  bool is_there(const Object& memory) const;
  uint64_t pick_shareable(Object** memory);
  void export_handle();
  void allow_handle();
  void import_own_handle();
  void import_handle();
  void share_events();
  void collectives();
  void profiling();
  void capture();
  void allocate();
  void release();
  void fill();
  void copy();
  void copy_rows();
  void reserve();
  void map();
  void functions();
  void callbacks(const Object& stream);
  void numbers();
  void descriptions();
  void settings();
  void finish_and_begin();
};

// Initializes the library, once in a program, and starts the second process if no other thread will make calls. Then
// makes the calls that an input stands for.
void begin();
void run(const uint8_t* data, size_t size);

}  // namespace fuzz
