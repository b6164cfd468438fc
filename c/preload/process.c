/* process.c - descriptors are duplicated and closed, and programs replaced. fork is start.c's. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int duplicated(int from, int to) {
  if (to >= 0 && to != from && shim_active()) descriptor_duplicated(from, to);
  return to;
}

EXPORT int dup(int fd) {
  return duplicated(fd, real.dup(fd));
}

/* Whether this will close `to`, as it does where both are descriptors and not the same. */
static void replacing(int from, int to) {
  if (from != to && shim_active() && real.fcntl(from, F_GETFD) >= 0) descriptor_closed(to);
}

EXPORT int dup2(int from, int to) {
  const int saved = errno;
  replacing(from, to);
  errno = saved;
  return duplicated(from, real.dup2(from, to));
}

EXPORT int dup3(int from, int to, int flags) {
  if ((flags & ~O_CLOEXEC) != 0) return real.dup3(from, to, flags);
  const int saved = errno;
  replacing(from, to);
  errno = saved;
  return duplicated(from, real.dup3(from, to, flags));
}

static bool is_duplicate(int command) {
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC;
}

/* Every argument of fcntl is an int or a pointer, and both are passed alike. */
EXPORT int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  const int result = real.fcntl(fd, command, argument);
  return is_duplicate(command) ? duplicated(fd, result) : result;
}

EXPORT int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  const int result = real.fcntl64(fd, command, argument);
  return is_duplicate(command) ? duplicated(fd, result) : result;
}

EXPORT int close(int fd) {
  if (fd >= 0) descriptor_closed(fd);
  return real.close(fd);
}

EXPORT int close_range(unsigned first, unsigned last, int flags) {
  if (first <= last && (flags & (int)CLOSE_RANGE_CLOEXEC) == 0) descriptor_range_closed(first, last);
  return real.close_range(first, last, flags);
}

EXPORT void closefrom(int first) {
  descriptor_range_closed(first < 0 ? 0 : (unsigned)first, ~0U);
  real.closefrom(first);
}

static bool is_leaving(void) {
  return shim_active() && !shim_borrowed();
}

/* Before exec, and after one that failed. */
static void leaving(void) {
  if (is_leaving()) {
    haul_socket_before_exec();
  } else if (shim_active()) {
    haul_socket_spawning();
  }
}

static int stayed(int result) {
  const int saved = errno;
  if (is_leaving()) haul_socket_start(NULL, NULL);
  errno = saved;
  return result;
}

EXPORT int execve(const char *path, char *const arguments[], char *const environment[]) {
  leaving();
  return stayed(real.execve(path, arguments, environment));
}

EXPORT int execv(const char *path, char *const arguments[]) {
  return execve(path, arguments, environ);
}

EXPORT int execvpe(const char *file, char *const arguments[], char *const environment[]) {
  leaving();
  return stayed(real.execvpe(file, arguments, environment));
}

EXPORT int execvp(const char *file, char *const arguments[]) {
  return execvpe(file, arguments, environ);
}

EXPORT int fexecve(int fd, char *const arguments[], char *const environment[]) {
  leaving();
  return stayed(real.fexecve(fd, arguments, environment));
}

EXPORT int execveat(int fd, const char *path, char *const arguments[], char *const environment[], int flags) {
  leaving();
  return stayed(real.execveat(fd, path, arguments, environment, flags));
}

/* The arguments of execl and its like, on the stack: the list, its NULL, and for execle the
 * environment after it. */
#define GATHER(FIRST)                                                       \
  va_list list;                                                             \
  size_t count = 1;                                                         \
  va_start(list, FIRST);                                                    \
  while (va_arg(list, char *) != NULL) count++;                             \
  va_end(list);                                                             \
  char *arguments[count + 1];                                               \
  arguments[0] = (char *)(uintptr_t)(FIRST);                                \
  va_start(list, FIRST);                                                    \
  for (size_t i = 1; i <= count; i++) arguments[i] = va_arg(list, char *);

EXPORT int execl(const char *path, const char *first, ...) {
  GATHER(first)
  va_end(list);
  return execv(path, arguments);
}

EXPORT int execlp(const char *file, const char *first, ...) {
  GATHER(first)
  va_end(list);
  return execvp(file, arguments);
}

EXPORT int execle(const char *path, const char *first, ...) {
  GATHER(first)
  char *const *environment = va_arg(list, char *const *);
  va_end(list);
  return execve(path, arguments, environment);
}

/* libc starts the program without the calls above. */
EXPORT int posix_spawn(pid_t *restrict child, const char *restrict path, const posix_spawn_file_actions_t *restrict actions,
                       const posix_spawnattr_t *restrict attributes, char *const arguments[restrict],
                       char *const environment[restrict]) {
  if (shim_active()) haul_socket_spawning();
  return real.posix_spawn(child, path, actions, attributes, arguments, environment);
}

EXPORT int posix_spawnp(pid_t *restrict child, const char *restrict file, const posix_spawn_file_actions_t *restrict actions,
                        const posix_spawnattr_t *restrict attributes, char *const arguments[restrict],
                        char *const environment[restrict]) {
  if (shim_active()) haul_socket_spawning();
  return real.posix_spawnp(child, file, actions, attributes, arguments, environment);
}

EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int to) {
  if (shim_active()) haul_socket_shared(fd);
  return real.posix_spawn_file_actions_adddup2(actions, fd, to);
}
