// What a newer glibc or libstdc++ has under a newer version, or has at all, by means of what the oldest one has that a
// wheel is for: glibc 2.28 and GCC 8. These functions are for the library that they are linked into alone, and there
// stand in for the system's. Headers and compiler may then be new ones; `./dev wheel` checks what is left.
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <ios>
#include <new>
#include <string>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
constexpr int kStatVersion = 1;
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
constexpr int kStatVersion = 0;
#endif

// old_NAME is the system's oldest function of that name, and new_NAME what everything here calls by that name.
#define OLD(name) asm(".symver old_" #name ", " #name "@" OLDEST)

extern "C" {

// glibc 2.34 moved the threads into libc.so.
OLD(pthread_create);
OLD(pthread_detach);
OLD(pthread_join);
OLD(pthread_sigmask);
int old_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int old_pthread_detach(pthread_t);
int old_pthread_join(pthread_t, void**);
int old_pthread_sigmask(int, const sigset_t*, sigset_t*);
int new_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) asm("pthread_create");
int new_pthread_detach(pthread_t) asm("pthread_detach");
int new_pthread_join(pthread_t, void**) asm("pthread_join");
int new_pthread_sigmask(int, const sigset_t*, sigset_t*) asm("pthread_sigmask");

int new_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  return old_pthread_create(thread, attributes, body, argument);
}
int new_pthread_detach(pthread_t thread) { return old_pthread_detach(thread); }
int new_pthread_join(pthread_t thread, void** result) { return old_pthread_join(thread, result); }
int new_pthread_sigmask(int how, const sigset_t* set, sigset_t* old) { return old_pthread_sigmask(how, set, old); }

#if defined(__x86_64__)
asm(".symver old_pthread_setname_np, pthread_setname_np@GLIBC_2.12");
#else
OLD(pthread_setname_np);
#endif
int old_pthread_setname_np(pthread_t, const char*);
int new_pthread_setname_np(pthread_t, const char*) asm("pthread_setname_np");
int new_pthread_setname_np(pthread_t thread, const char* name) { return old_pthread_setname_np(thread, name); }

// glibc 2.33 made functions of what were macros around these.
int __fxstat(int, int, struct stat*) noexcept;
int new_fstat(int, struct stat*) asm("fstat");
int new_fstat(int file, struct stat* about) { return __fxstat(kStatVersion, file, about); }

// glibc 2.32. Where it is true, std::shared_ptr counts without atomic instructions.
extern char single_threaded asm("__libc_single_threaded");
char single_threaded = 0;

// libstdc++ of GCC 11.
[[noreturn]] void throw_bad_array_new_length() asm("_ZSt28__throw_bad_array_new_lengthv");
void throw_bad_array_new_length() { throw std::bad_array_new_length(); }

// The members of std::exception_ptr that count, by its copy constructor and its destructor, which are older.
void copy_exception(void* copy, const void* pointer) asm("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void end_exception(void* pointer) asm("_ZNSt15__exception_ptr13exception_ptrD1Ev");
void add_reference(void* pointer) asm("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void drop_reference(void* pointer) asm("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void add_reference(void* pointer) {
  void* never_ended = nullptr;
  copy_exception(&never_ended, pointer);
}
void drop_reference(void* pointer) { end_exception(pointer); }

// std::ostringstream's default constructor, of GCC 9, and std::move(stream).str().
#define STREAM "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEE"
#define BUFFER "7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
void begin_stream(void* stream, std::ios_base::openmode mode) asm(STREAM "C1ESt13_Ios_Openmode");
void begin_output(void* stream) asm(STREAM "C1Ev");
void begin_output(void* stream) { begin_stream(stream, std::ios_base::out); }
}

std::string copied_text(const void* buffer) asm("_ZNKSt" BUFFER);
std::string moved_text(const void* buffer) asm("_ZNOSt" BUFFER);
std::string moved_text(const void* buffer) { return copied_text(buffer); }
