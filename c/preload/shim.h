/*
 * shim.h - what the files of the shim share.
 *
 * The shim stands between a program and libc. Every wrapper asks haul_socket_kind() first: a
 * descriptor that is not ours goes straight to libc's function, with the arguments as they came. A
 * taken descriptor goes to haul_socket.h.
 *
 * Nothing here takes a lock: wrappers run in signal handlers, between fork and exec, and in threads
 * that are cancelled. What several threads change is atomic.
 */
#ifndef SHIM_H
#define SHIM_H

#include "haul_socket.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/* The argument behind the last one of system calls that the shim has decided: the filter of `haul
 * run` allows them. crates/haul-socket/src/sys.rs has the same number. */
#define HAUL_OWN 0x6861756c2072756eUL

/* What the version script lets out. */
#define EXPORT __attribute__((visibility("default")))

/* libc's functions, in the order of the files that wrap them. */
#define REAL_CALLS(CALL)                                                                                     \
  CALL(int, socket, (int, int, int))                                                                         \
  CALL(int, bind, (int, const struct sockaddr *, socklen_t))                                                 \
  CALL(int, listen, (int, int))                                                                              \
  CALL(int, connect, (int, const struct sockaddr *, socklen_t))                                              \
  CALL(int, accept, (int, struct sockaddr *, socklen_t *))                                                   \
  CALL(int, accept4, (int, struct sockaddr *, socklen_t *, int))                                             \
  CALL(int, shutdown, (int, int))                                                                            \
  CALL(int, setsockopt, (int, int, int, const void *, socklen_t))                                            \
  CALL(int, getsockopt, (int, int, int, void *, socklen_t *))                                                \
  CALL(int, getpeername, (int, struct sockaddr *, socklen_t *))                                              \
  CALL(int, ioctl, (int, unsigned long, ...))                                                                \
  CALL(ssize_t, recv, (int, void *, size_t, int))                                                            \
  CALL(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *))                        \
  CALL(ssize_t, recvmsg, (int, struct msghdr *, int))                                                        \
  CALL(int, recvmmsg, (int, struct mmsghdr *, unsigned, int, struct timespec *))                             \
  CALL(ssize_t, read, (int, void *, size_t))                                                                 \
  CALL(ssize_t, readv, (int, const struct iovec *, int))                                                     \
  CALL(ssize_t, preadv2, (int, const struct iovec *, int, off_t, int))                                       \
  CALL(ssize_t, preadv64v2, (int, const struct iovec *, int, off64_t, int))                                  \
  CALL(ssize_t, __recv_chk, (int, void *, size_t, size_t, int))                                              \
  CALL(ssize_t, __recvfrom_chk, (int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *))          \
  CALL(ssize_t, __read_chk, (int, void *, size_t, size_t))                                                   \
  CALL(ssize_t, send, (int, const void *, size_t, int))                                                      \
  CALL(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t))                \
  CALL(ssize_t, sendmsg, (int, const struct msghdr *, int))                                                  \
  CALL(int, sendmmsg, (int, struct mmsghdr *, unsigned, int))                                                \
  CALL(ssize_t, write, (int, const void *, size_t))                                                          \
  CALL(ssize_t, writev, (int, const struct iovec *, int))                                                    \
  CALL(ssize_t, pwritev2, (int, const struct iovec *, int, off_t, int))                                      \
  CALL(ssize_t, pwritev64v2, (int, const struct iovec *, int, off64_t, int))                                 \
  CALL(ssize_t, sendfile, (int, int, off_t *, size_t))                                                       \
  CALL(ssize_t, sendfile64, (int, int, off64_t *, size_t))                                                   \
  CALL(ssize_t, splice, (int, off64_t *, int, off64_t *, size_t, unsigned))                                  \
  CALL(int, poll, (struct pollfd *, nfds_t, int))                                                            \
  CALL(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))                     \
  CALL(int, __poll_chk, (struct pollfd *, nfds_t, int, size_t))                                              \
  CALL(int, __ppoll_chk, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t))       \
  CALL(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))                                   \
  CALL(int, pselect, (int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *))         \
  CALL(int, epoll_create, (int))                                                                             \
  CALL(int, epoll_create1, (int))                                                                            \
  CALL(int, epoll_ctl, (int, int, int, struct epoll_event *))                                                \
  CALL(int, epoll_wait, (int, struct epoll_event *, int, int))                                               \
  CALL(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *))                            \
  CALL(int, epoll_pwait2, (int, struct epoll_event *, int, const struct timespec *, const sigset_t *))       \
  CALL(int, fcntl, (int, int, ...))                                                                          \
  CALL(int, fcntl64, (int, int, ...))                                                                        \
  CALL(int, dup, (int))                                                                                      \
  CALL(int, dup2, (int, int))                                                                                \
  CALL(int, dup3, (int, int, int))                                                                           \
  CALL(int, close, (int))                                                                                    \
  CALL(int, close_range, (unsigned, unsigned, int))                                                          \
  CALL(void, closefrom, (int))                                                                               \
  CALL(int, execve, (const char *, char *const[], char *const[]))                                            \
  CALL(int, execvpe, (const char *, char *const[], char *const[]))                                           \
  CALL(int, fexecve, (int, char *const[], char *const[]))                                                    \
  CALL(int, execveat, (int, const char *, char *const[], char *const[], int))                                \
  CALL(int, posix_spawn, (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,           \
                          char *const[], char *const[]))                                                     \
  CALL(int, posix_spawnp, (pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,          \
                           char *const[], char *const[]))                                                    \
  CALL(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t *, int, int))                      \
  CALL(void, perror, (const char *))                                                                         \
  CALL(FILE *, freopen, (const char *, const char *, FILE *))                                                \
  CALL(FILE *, freopen64, (const char *, const char *, FILE *))                                              \
  CALL(int, vdprintf, (int, const char *, va_list))                                                          \
  CALL(int, __vdprintf_chk, (int, int, const char *, va_list))

#define DECLARE(RESULT, NAME, PARAMETERS) RESULT(*NAME) PARAMETERS;
struct real_calls {
  REAL_CALLS(DECLARE)
};
#undef DECLARE

/* start.c: libc's functions; the first call of a process starts the shim. */
const struct real_calls *real_calls(void);
#define real (*real_calls())
/* Whether this process runs under `haul run`, and so anything may be taken. */
bool shim_active(void);
/* Whether this is the child of a vfork, in its parent's memory: what it does to descriptors is not
 * ours to note. */
bool shim_borrowed(void);

static inline bool taken(int fd) {
  return haul_socket_kind(fd) != HAUL_SOCKET_NONE;
}

/* descriptors.c: what the shim knows about descriptors, by number. */

/* Descriptors above this are left to the kernel. */
#define DESCRIPTORS_MAX (1 << 20)
/* Places in which one descriptor can be registered with epoll at the same time and still be watched
 * by the shim. */
#define REGISTRATIONS_MAX 4

/* A registration of a descriptor by epoll_ctl(2). */
struct registration {
  atomic_uint instance; /* which epoll instance; 0: free */
  atomic_int epoll;     /* a descriptor of it */
  atomic_uint events;
  atomic_bool owed; /* edge-triggered or one-shot, added while bytes waited in user space: an event is due */
  _Atomic uint64_t data;
};

struct descriptor {
  atomic_uint socket;     /* which socket that the interface knows, shared by duplicates; 0: none */
  atomic_bool duplicated; /* there is or was another descriptor of this socket */
  atomic_uint instance;   /* which epoll instance this is a descriptor of; 0: none */
  atomic_uint waiters;    /* threads that wait on it */
  atomic_uint turn;       /* whose events come first when there is room for one */
  struct registration registrations[REGISTRATIONS_MAX];
};

/* NULL where nothing is known. */
struct descriptor *descriptor_find(int fd);
/* NULL where there is no memory, or the number is out of bounds. */
struct descriptor *descriptor_make(int fd);
/* NULL unless it is a socket that the interface has been notified of or has taken. */
struct descriptor *descriptor_known(int fd);
uint32_t descriptor_next_id(void);
/* Also one that the process was started with, when it is used for the first time. */
bool descriptor_is_known(int fd);
/* A socket that the interface has been notified of. */
void descriptor_opened(int fd);
void descriptor_duplicated(int from, int to);
/* Tells the interface, and forgets. To be called before the descriptor is closed. */
void descriptor_closed(int fd);
void descriptor_range_closed(unsigned first, unsigned last);
/* Whether an error of the interface means that the descriptor was closed behind the shim's back; it
 * is forgotten then. */
bool descriptor_is_stale(int fd, int error);

/* The descriptors that hold bytes in user space which no kernel event will announce. */
bool holding_any(void);
/* The first one from `from` on, -1 if there is none. */
int holding_next(int from);
/* Looks whether a descriptor does; to be called after each receive. */
void holding_update(int fd);

/* receive.c */
ssize_t taken_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t taken_recv(int fd, void *buffer, size_t length, int flags);
/* Whether a receive would return at once. Takes in what the kernel has, and waits for nothing. */
bool taken_ready(int fd);

/* send.c */
ssize_t taken_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t taken_send(int fd, const void *buffer, size_t length, int flags);

/* stdio.c: has the streams of stdio pass the shim; false where this libc's are not known. */
bool stdio_start(void);

/* epoll.c */
/* Bytes came to be held in user space: wakes who waits for them. */
void epoll_notice_held(int fd);
/* Whether epoll_wait on this descriptor of an instance would report something that is held in user
 * space. */
bool epoll_holds(int fd);
/* A descriptor is being closed that may be the shim's own. */
void epoll_closing(int fd);

/* Time that is left, for calls that wait again. */
struct deadline {
  bool never;
  struct timespec at;
};
struct deadline deadline_in(const struct timespec *timeout);
struct timespec deadline_left(const struct deadline *deadline);
struct timespec milliseconds(int timeout);

#endif
