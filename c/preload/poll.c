/*
 * poll.c - readiness of taken sockets for poll(2) and select(2).
 *
 * The kernel knows what waits in its socket. Two things it does not know: that bytes wait in user
 * space (reported here at once), and that what arrived is no whole message yet (not reported, and
 * waited for again).
 */
#include "shim.h"

#include <errno.h>
#include <string.h>

/* glibc declares that poll and ppoll only write what they are given. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define READABLE (POLLIN | POLLRDNORM)
#define SECOND INT64_C(1000000000)

static struct timespec now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time;
}

struct deadline deadline_in(const struct timespec *timeout) {
  struct deadline deadline = {.never = timeout == NULL};
  if (timeout == NULL) return deadline;
  deadline.at = now();
  if (__builtin_add_overflow(deadline.at.tv_sec, timeout->tv_sec, &deadline.at.tv_sec)) deadline.never = true;
  deadline.at.tv_nsec += timeout->tv_nsec;
  if (deadline.at.tv_nsec >= SECOND) {
    deadline.at.tv_nsec -= SECOND;
    deadline.at.tv_sec++;
  }
  return deadline;
}

/* Not to be called of a deadline that never comes. */
struct timespec deadline_left(const struct deadline *deadline) {
  const struct timespec time = now();
  struct timespec left = {.tv_sec = deadline->at.tv_sec - time.tv_sec, .tv_nsec = deadline->at.tv_nsec - time.tv_nsec};
  if (left.tv_nsec < 0) {
    left.tv_nsec += SECOND;
    left.tv_sec--;
  }
  return left.tv_sec < 0 ? (struct timespec){0} : left;
}

struct timespec milliseconds(int timeout) {
  return (struct timespec){.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};
}

static const struct timespec at_once = {0};

/* Whether something waits in user space: in a taken socket, or in one that an epoll instance
 * watches. */
static bool holds(int fd) {
  return haul_socket_pending(fd) > 0 || epoll_holds(fd);
}

/* Of datagrams the kernel knows everything. */
static bool is_stream(int fd) {
  return haul_socket_kind(fd) == HAUL_SOCKET_STREAM;
}

/* Whether the shim has anything to add to what the kernel reports. */
static bool polls_ours(const struct pollfd *fds, nfds_t count) {
  if (!shim_active()) return false;
  const bool any = holding_any();
  for (nfds_t i = 0; i < count; i++) {
    if (fds[i].fd >= 0 && (is_stream(fds[i].fd) || (any && epoll_holds(fds[i].fd)))) return true;
  }
  return false;
}

static bool any_held(const struct pollfd *fds, nfds_t count) {
  for (nfds_t i = 0; i < count; i++) {
    if ((fds[i].events & READABLE) != 0 && holds(fds[i].fd)) return true;
  }
  return false;
}

/* Corrects what the kernel reported, and counts it. */
static int correct(struct pollfd *fds, nfds_t count) {
  int ready = 0;
  for (nfds_t i = 0; i < count; i++) {
    struct pollfd *one = &fds[i];
    const short wanted = one->events & READABLE;
    if (one->fd >= 0 && wanted != 0) {
      if (holds(one->fd))
        one->revents |= wanted;
      else if ((one->revents & READABLE) != 0 && (one->revents & (POLLERR | POLLHUP)) == 0 && taken(one->fd) &&
               !taken_ready(one->fd))
        one->revents &= (short)~READABLE;
    }
    if (one->revents != 0) ready++;
  }
  return ready;
}

static int poll_ours(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
  const struct deadline deadline = deadline_in(timeout);
  struct timespec left;
  const struct timespec *wait = timeout;
  for (;;) {
    const bool held = any_held(fds, count);
    int result = real.ppoll(fds, count, held ? &at_once : wait, mask);
    if (result < 0) {
      if (!held || errno != EINTR) return result;
      for (nfds_t i = 0; i < count; i++) fds[i].revents = 0;
    }
    if (held || result > 0) result = correct(fds, count);
    if (result > 0) return result;
    if (wait != NULL) {
      left = deadline.never ? at_once : deadline_left(&deadline);
      wait = &left;
      if (left.tv_sec == 0 && left.tv_nsec == 0) return 0;
    }
  }
}

EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout) {
  if (!polls_ours(fds, count)) return real.poll(fds, count, timeout);
  const struct timespec limit = milliseconds(timeout);
  return poll_ours(fds, count, timeout < 0 ? NULL : &limit, NULL);
}

EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
  return polls_ours(fds, count) ? poll_ours(fds, count, timeout, mask) : real.ppoll(fds, count, timeout, mask);
}

EXPORT int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t size) {
  if (size / sizeof *fds < count) return real.__poll_chk(fds, count, timeout, size);
  return poll(fds, count, timeout);
}

EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask, size_t size) {
  if (size / sizeof *fds < count) return real.__ppoll_chk(fds, count, timeout, mask, size);
  return ppoll(fds, count, timeout, mask);
}

/* The sets of a select, as the words that the kernel takes them for: they may be longer than an
 * fd_set. */
struct sets {
  size_t words;
  fd_mask *read, *write, *except;
};

static struct sets sets_of(int count, fd_set *read, fd_set *write, fd_set *except) {
  return (struct sets){
      .words = ((size_t)count + NFDBITS - 1) / NFDBITS,
      .read = (fd_mask *)read,
      .write = (fd_mask *)write,
      .except = (fd_mask *)except,
  };
}

static bool is_set(const fd_mask *set, int fd) {
  return (set[fd / NFDBITS] & ((fd_mask)((unsigned long)1 << (fd % NFDBITS)))) != 0;
}

static void set_bit(fd_mask *set, int fd) {
  set[fd / NFDBITS] |= (fd_mask)((unsigned long)1 << (fd % NFDBITS));
}

static void clear_bit(fd_mask *set, int fd) {
  set[fd / NFDBITS] &= (fd_mask)~((unsigned long)1 << (fd % NFDBITS));
}

static bool selects_ours(int count, const struct sets *sets) {
  if (!shim_active() || sets->read == NULL || count <= 0 || count > DESCRIPTORS_MAX) return false;
  const bool any = holding_any();
  for (int fd = 0; fd < count; fd++) {
    if (sets->read[fd / NFDBITS] == 0) {
      fd |= NFDBITS - 1;
      continue;
    }
    if (is_set(sets->read, fd) && (is_stream(fd) || (any && epoll_holds(fd)))) return true;
  }
  return false;
}

static bool any_selected_held(int count, const fd_mask *wanted) {
  for (int fd = 0; fd < count; fd++) {
    if (is_set(wanted, fd) && holds(fd)) return true;
  }
  return false;
}

static int count_bits(const fd_mask *set, size_t words) {
  int bits = 0;
  for (size_t i = 0; set != NULL && i < words; i++) bits += __builtin_popcountl((unsigned long)set[i]);
  return bits;
}

/* Corrects the descriptors that the kernel called readable, and counts what is set. */
static int correct_sets(int count, const struct sets *sets, const fd_mask *wanted) {
  for (int fd = 0; fd < count; fd++) {
    if (!is_set(wanted, fd)) continue;
    if (holds(fd))
      set_bit(sets->read, fd);
    else if (is_set(sets->read, fd) && taken(fd) && !taken_ready(fd))
      clear_bit(sets->read, fd);
  }
  return count_bits(sets->read, sets->words) + count_bits(sets->write, sets->words) + count_bits(sets->except, sets->words);
}

static void restore(fd_mask *set, const fd_mask *wanted, size_t size) {
  if (set != NULL) memcpy(set, wanted, size);
}

static int select_ours(int count, const struct sets *sets, const struct timespec *timeout, const sigset_t *mask) {
  const struct deadline deadline = deadline_in(timeout);
  const size_t size = sets->words * sizeof(fd_mask);
  fd_mask wanted[3][sets->words];
  memcpy(wanted[0], sets->read, size);
  if (sets->write != NULL) memcpy(wanted[1], sets->write, size);
  if (sets->except != NULL) memcpy(wanted[2], sets->except, size);
  struct timespec left;
  const struct timespec *wait = timeout;
  for (;;) {
    const bool held = any_selected_held(count, wanted[0]);
    int result = real.pselect(count, (fd_set *)sets->read, (fd_set *)sets->write, (fd_set *)sets->except,
                              held ? &at_once : wait, mask);
    if (result < 0) {
      if (!held || errno != EINTR) return result;
      memset(sets->read, 0, size);
      if (sets->write != NULL) memset(sets->write, 0, size);
      if (sets->except != NULL) memset(sets->except, 0, size);
    }
    if (held || result > 0) result = correct_sets(count, sets, wanted[0]);
    if (result > 0) return result;
    if (wait != NULL) {
      left = deadline.never ? at_once : deadline_left(&deadline);
      wait = &left;
      if (left.tv_sec == 0 && left.tv_nsec == 0) return 0;
    }
    restore(sets->read, wanted[0], size);
    restore(sets->write, wanted[1], size);
    restore(sets->except, wanted[2], size);
  }
}

/* Linux leaves in the timeout what was left of it. */
EXPORT int select(int count, fd_set *read, fd_set *write, fd_set *except, struct timeval *timeout) {
  const struct sets sets = sets_of(count, read, write, except);
  if (!selects_ours(count, &sets)) return real.select(count, read, write, except, timeout);
  if (timeout == NULL) return select_ours(count, &sets, NULL, NULL);
  if (timeout->tv_sec < 0 || timeout->tv_usec < 0) return real.select(count, read, write, except, timeout);
  const struct timespec limit = {.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000,
                                 .tv_nsec = timeout->tv_usec % 1000000 * 1000L};
  const struct deadline deadline = deadline_in(&limit);
  const int result = select_ours(count, &sets, &limit, NULL);
  const int saved = errno;
  const struct timespec left = deadline.never ? limit : deadline_left(&deadline);
  *timeout = (struct timeval){.tv_sec = left.tv_sec, .tv_usec = left.tv_nsec / 1000};
  errno = saved;
  return result;
}

EXPORT int pselect(int count, fd_set *read, fd_set *write, fd_set *except, const struct timespec *timeout,
                   const sigset_t *mask) {
  const struct sets sets = sets_of(count, read, write, except);
  if (!selects_ours(count, &sets)) return real.pselect(count, read, write, except, timeout, mask);
  return select_ours(count, &sets, timeout, mask);
}
