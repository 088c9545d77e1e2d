// Runs a function in a forked child, which must end well and soon.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

// ThreadSanitizer does not follow a fork of a process with threads; AddressSanitizer does, but where one of them is in
// malloc the child finds its locks taken. qemu-user aborts where a forked child starts a thread.
#if defined(__SANITIZE_THREAD__) || defined(DESCEND_EMULATED)
inline constexpr bool kForkTests = false, kForkBesideThreads = false;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kForkTests = true, kForkBesideThreads = false;
#else
inline constexpr bool kForkTests = true, kForkBesideThreads = true;
#endif

// 0 if `body` returned true; -1 if the child hung or crashed, else its exit status.
template <class Body>
int in_child(Body&& body, unsigned seconds = 30) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
