/* start.c - the table of libc's functions, and the start of the shim in a process. */
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static struct real_calls calls;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Set once, after the table is filled. */
static atomic_bool started;
static atomic_bool active;
static atomic_int process;

static void before_fork(void) {
  if (atomic_load_explicit(&active, memory_order_relaxed)) haul_socket_forking();
}

static void in_child(void) {
  if (!atomic_load_explicit(&active, memory_order_relaxed)) return;
  atomic_store(&process, getpid());
  haul_socket_forked();
}

/* Programs that forbid themselves, by seccomp(2), the calls that a taken socket needs; nothing is
 * taken in them. */
static bool locks_itself_in(void) {
  static const char *const names[] = {"sshd"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(program_invocation_short_name, names[i]) == 0) return true;
  }
  return false;
}

static void start(void) {
  /* POSIX has dlsym return functions as pointers to objects; what libc lacks stays NULL, and nobody
   * can call it. */
#define FIND(RESULT, NAME, PARAMETERS)            \
  {                                               \
    void *address = dlsym(RTLD_NEXT, #NAME);      \
    memcpy(&calls.NAME, &address, sizeof address); \
  }
  REAL_CALLS(FIND)
#undef FIND
  atomic_store(&process, getpid());
  atomic_store_explicit(&started, true, memory_order_release);
  /* The loader drops foreign libraries from programs that change their user; this is for those it
   * lets through. */
  if (getauxval(AT_SECURE) != 0 || locks_itself_in()) return;
  /* Streams over a taken socket would read and write frames. */
  if (secure_getenv("HAUL_RUN_ID") == NULL || !stdio_start()) return;
  if (haul_socket_start(secure_getenv("HAUL_RUN_TABLE"), secure_getenv("HAUL_RUN_ID")) != 1) return;
  pthread_atfork(before_fork, NULL, in_child);
  atomic_store_explicit(&active, true, memory_order_release);
}

const struct real_calls *real_calls(void) {
  if (!atomic_load_explicit(&started, memory_order_acquire)) pthread_once(&once, start);
  return &calls;
}

bool shim_active(void) {
  real_calls();
  return atomic_load_explicit(&active, memory_order_acquire);
}

bool shim_borrowed(void) {
  return getpid() != atomic_load_explicit(&process, memory_order_relaxed);
}

__attribute__((constructor)) static void constructed(void) {
  real_calls();
}
