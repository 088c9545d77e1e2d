// The runtime under a fuzzer: every object that the input makes, and what each call must return because of that.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "bytes.h"

namespace fuzz {

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
    size_t pages = 0, mappings = 0;       // of physical memory
  };
  struct Block {
    char* data = nullptr;
    bool on_host = false;
    std::vector<char> contents;  // what must be there
  };

  Bytes& bytes_;
  std::vector<Object> streams_, events_, contexts_, physical_;
  std::vector<std::unique_ptr<Block>> blocks_;
  char* reservation_ = nullptr;
  std::map<size_t, size_t> mapped_;  // first page in the reservation -> index of the physical memory
  int calls_expected_ = 0;
  std::atomic<int> calls_{0};

  Object& pick(std::vector<Object>& objects);
  Object pick_stream();
  Block* pick_block();
  void settle();
  void make(std::vector<Object>& objects, const char* who, const std::function<int(void**)>& create);
  void destroy(std::vector<Object>& objects, const char* who, const std::function<int(void*)>& end);

  void streams();
  void events();
  void event_times();
  void contexts();
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

// Initializes the library, once in a program. Then makes the calls that an input stands for.
void begin();
void run(const uint8_t* data, size_t size);

}  // namespace fuzz
