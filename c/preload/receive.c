/* receive.c - every way to receive, made of haul_socket_recvmsg. */
#include "shim.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

/* What iovec arrays are limited to (IOV_MAX). */
#define VECTORS_MAX 1024
/* How far FIONREAD looks into a stream. */
#define PEEK_MAX 16384

/* Receives what is there. Where the socket waits, the kernel does: a peek restarts after a signal,
 * ends at SO_RCVTIMEO and at the thread's cancellation, and reports the socket's error exactly as a
 * receive does. */
static ssize_t receive_some(int fd, struct msghdr *message, int flags) {
  for (;;) {
    const socklen_t name_length = message->msg_namelen;
    const size_t control_length = message->msg_controllen;
    const ssize_t result = haul_socket_recvmsg(fd, message, flags | MSG_DONTWAIT);
    if (result >= 0) return result;
    if (descriptor_is_stale(fd, errno)) return real.recvmsg(fd, message, flags);
    if (errno != EAGAIN || (flags & MSG_DONTWAIT) != 0) return result;
    char octet;
    if (real.recv(fd, &octet, 1, MSG_PEEK) < 0) return -1;
    message->msg_namelen = name_length;
    message->msg_controllen = control_length;
  }
}

_Static_assert(sizeof(void *) != 8 || sizeof(struct haul_socket_arrival) == 208, "the layout of crates/haul-socket");

/* One system call, which waits as the socket does. A damaged datagram is as if it had not come: the
 * kernel, too, begins SO_RCVTIMEO again after one with a wrong checksum. */
static ssize_t receive_datagram(int fd, struct msghdr *message, int flags) {
  struct haul_socket_arrival arrival;
  while (haul_socket_arrival(fd, message, flags, &arrival) == 1) {
    struct msghdr *own = &arrival.message;
    ssize_t length;
    if (own->msg_iovlen == 1 && own->msg_controllen == 0) {
      own->msg_flags = 0;
      length = real.recvfrom(fd, own->msg_iov->iov_base, own->msg_iov->iov_len, flags & ~MSG_TRUNC, own->msg_name,
                             own->msg_name == NULL ? NULL : &own->msg_namelen);
      if (own->msg_name == NULL) own->msg_namelen = 0;
    } else {
      length = real.recvmsg(fd, own, flags & ~MSG_TRUNC);
    }
    const ssize_t result = haul_socket_arrived(fd, message, flags, &arrival, length);
    if (result >= 0) return result;
    if (length < 0) return descriptor_is_stale(fd, errno) ? real.recvmsg(fd, message, flags) : -1;
  }
  return receive_some(fd, message, flags);
}

/* Leaves out what has been received. */
static void advance(struct msghdr *message, size_t length) {
  while (message->msg_iovlen > 0 && length >= message->msg_iov->iov_len) {
    length -= message->msg_iov->iov_len;
    message->msg_iov++;
    message->msg_iovlen--;
  }
  if (message->msg_iovlen == 0) return;
  message->msg_iov->iov_base = (char *)message->msg_iov->iov_base + length;
  message->msg_iov->iov_len -= length;
}

static size_t total(const struct msghdr *message) {
  size_t sum = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++) sum += message->msg_iov[i].iov_len;
  return sum;
}

/* MSG_WAITALL of a stream: until the buffers are full, or the stream ends, fails or is
 * interrupted. */
static ssize_t receive_all(int fd, struct msghdr *message, int flags) {
  const size_t wanted = total(message);
  struct iovec vectors[message->msg_iovlen];
  memcpy(vectors, message->msg_iov, sizeof vectors);
  struct msghdr rest = *message;
  rest.msg_iov = vectors;
  size_t received = 0;
  ssize_t result;
  do {
    result = receive_some(fd, &rest, flags);
    if (result <= 0) break;
    received += (size_t)result;
    advance(&rest, (size_t)result);
  } while (received < wanted);
  message->msg_namelen = rest.msg_namelen;
  message->msg_controllen = rest.msg_controllen;
  message->msg_flags = rest.msg_flags;
  return received > 0 ? (ssize_t)received : result;
}

/* MSG_TRUNC of a stream: as much as was asked for is thrown away, and nothing written to the
 * caller's memory. */
static ssize_t receive_away(int fd, struct msghdr *message, int flags) {
  char buffer[PEEK_MAX];
  const size_t wanted = total(message);
  struct iovec vector = {.iov_base = buffer, .iov_len = wanted < sizeof buffer ? wanted : sizeof buffer};
  struct msghdr away = {.msg_iov = &vector, .msg_iovlen = 1};
  const ssize_t result = receive_some(fd, &away, flags & ~MSG_TRUNC);
  message->msg_namelen = 0;
  message->msg_controllen = 0;
  message->msg_flags = away.msg_flags;
  return result;
}

ssize_t taken_recvmsg(int fd, struct msghdr *message, int flags) {
  if ((flags & MSG_ERRQUEUE) != 0 || message->msg_iovlen > VECTORS_MAX) return real.recvmsg(fd, message, flags);
  if (haul_socket_kind(fd) == HAUL_SOCKET_DATAGRAM) return receive_datagram(fd, message, flags);
  const bool stream = haul_socket_kind(fd) == HAUL_SOCKET_STREAM && message->msg_iovlen > 0;
  ssize_t result;
  if (stream && (flags & MSG_TRUNC) != 0)
    result = receive_away(fd, message, flags);
  else if (stream && (flags & (MSG_WAITALL | MSG_PEEK | MSG_DONTWAIT)) == MSG_WAITALL)
    result = receive_all(fd, message, flags);
  else
    result = receive_some(fd, message, flags);
  const int saved = errno;
  holding_update(fd);
  errno = saved;
  return result;
}

static ssize_t receive_from(int fd, void *buffer, size_t length, int flags, struct sockaddr *from, socklen_t *from_length) {
  struct iovec vector = {.iov_base = buffer, .iov_len = length};
  struct msghdr message = {.msg_name = from, .msg_iov = &vector, .msg_iovlen = 1};
  if (from != NULL) message.msg_namelen = *from_length;
  const ssize_t result = taken_recvmsg(fd, &message, flags);
  if (result >= 0 && from != NULL) *from_length = message.msg_namelen;
  return result;
}

ssize_t taken_recv(int fd, void *buffer, size_t length, int flags) {
  return receive_from(fd, buffer, length, flags, NULL, NULL);
}

/* A datagram that turns out to be damaged may have been reported as readable, as select(2)
 * documents for wrong checksums. */
bool taken_ready(int fd) {
  if (haul_socket_kind(fd) == HAUL_SOCKET_DATAGRAM) return true;
  if (haul_socket_pending(fd) > 0) return true;
  const int saved = errno;
  char octet;
  const ssize_t result = taken_recv(fd, &octet, 1, MSG_PEEK | MSG_DONTWAIT);
  const bool ready = result >= 0 || errno != EAGAIN;
  errno = saved;
  return ready;
}

EXPORT ssize_t recv(int fd, void *buffer, size_t length, int flags) {
  return taken(fd) ? taken_recv(fd, buffer, length, flags) : real.recv(fd, buffer, length, flags);
}

EXPORT ssize_t recvfrom(int fd, void *restrict buffer, size_t length, int flags, __SOCKADDR_ARG from,
                        socklen_t *restrict from_length) {
  if (!taken(fd)) return real.recvfrom(fd, buffer, length, flags, from.__sockaddr__, from_length);
  return receive_from(fd, buffer, length, flags, from.__sockaddr__, from_length);
}

/* Descriptors that came along are the program's from now on. */
static void note_passed(struct msghdr *message) {
  if (message->msg_control == NULL || message->msg_controllen < sizeof(struct cmsghdr)) return;
  for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      descriptor_opened(fd);
      haul_socket_received(fd);
    }
  }
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
  if (taken(fd)) return taken_recvmsg(fd, message, flags);
  const ssize_t result = real.recvmsg(fd, message, flags);
  if (result >= 0 && shim_active()) note_passed(message);
  return result;
}

/* As the kernel does: the first may be waited for, a timeout is looked at between messages, and an
 * error after the first message is for the next call. */
static int receive_many(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
  const struct deadline deadline = deadline_in(timeout);
  int received = 0;
  for (unsigned i = 0; i < count; i++) {
    const ssize_t result = taken_recvmsg(fd, &messages[i].msg_hdr, flags & ~MSG_WAITFORONE);
    if (result < 0) return received > 0 ? received : -1;
    messages[i].msg_len = (unsigned)result;
    received++;
    if ((flags & MSG_WAITFORONE) != 0) flags |= MSG_DONTWAIT;
    if (timeout == NULL) continue;
    *timeout = deadline_left(&deadline);
    if (timeout->tv_sec == 0 && timeout->tv_nsec == 0) break;
  }
  return received;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
  if (taken(fd)) return receive_many(fd, messages, count, flags, timeout);
  const int result = real.recvmmsg(fd, messages, count, flags, timeout);
  if (shim_active()) {
    for (int i = 0; i < result; i++) note_passed(&messages[i].msg_hdr);
  }
  return result;
}

EXPORT ssize_t read(int fd, void *buffer, size_t length) {
  return taken(fd) ? taken_recv(fd, buffer, length, 0) : real.read(fd, buffer, length);
}

static ssize_t receive_vector(int fd, const struct iovec *vectors, int count, int flags) {
  if (count < 0 || count > VECTORS_MAX) {
    errno = EINVAL;
    return -1;
  }
  struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)vectors, .msg_iovlen = (size_t)count};
  return taken_recvmsg(fd, &message, flags);
}

EXPORT ssize_t readv(int fd, const struct iovec *vectors, int count) {
  return taken(fd) ? receive_vector(fd, vectors, count, 0) : real.readv(fd, vectors, count);
}

/* Sockets have no other position than the current one, which is -1. */
static bool is_plain_read(int fd, off64_t offset, int flags) {
  return taken(fd) && offset == -1 && (flags & ~(RWF_NOWAIT | RWF_HIPRI)) == 0;
}

EXPORT ssize_t preadv2(int fd, const struct iovec *vectors, int count, off_t offset, int flags) {
  if (!is_plain_read(fd, offset, flags)) return real.preadv2(fd, vectors, count, offset, flags);
  return receive_vector(fd, vectors, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
}

EXPORT ssize_t preadv64v2(int fd, const struct iovec *vectors, int count, off64_t offset, int flags) {
  if (!is_plain_read(fd, offset, flags)) return real.preadv64v2(fd, vectors, count, offset, flags);
  return receive_vector(fd, vectors, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
}

/* What _FORTIFY_SOURCE makes of the calls. A buffer that is too short is libc's to report. */

EXPORT ssize_t __recv_chk(int fd, void *buffer, size_t length, size_t size, int flags) {
  if (!taken(fd) || length > size) return real.__recv_chk(fd, buffer, length, size, flags);
  return taken_recv(fd, buffer, length, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *restrict buffer, size_t length, size_t size, int flags, __SOCKADDR_ARG from,
                              socklen_t *restrict from_length) {
  if (!taken(fd) || length > size)
    return real.__recvfrom_chk(fd, buffer, length, size, flags, from.__sockaddr__, from_length);
  return receive_from(fd, buffer, length, flags, from.__sockaddr__, from_length);
}

EXPORT ssize_t __read_chk(int fd, void *buffer, size_t length, size_t size) {
  if (!taken(fd) || length > size) return real.__read_chk(fd, buffer, length, size);
  return taken_recv(fd, buffer, length, 0);
}

/* FIONREAD: the kernel counts frames. Of a datagram its length, of a stream what a receive would
 * get, to a limit. */
static int readable_octets(int fd) {
  const int saved = errno;
  char buffer[PEEK_MAX];
  const int whole = haul_socket_kind(fd) == HAUL_SOCKET_DATAGRAM ? MSG_TRUNC : 0;
  const ssize_t length = taken_recv(fd, buffer, sizeof buffer, MSG_PEEK | MSG_DONTWAIT | whole);
  errno = saved;
  return length > 0 ? (int)length : 0;
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  if (request != FIONREAD || !taken(fd)) return real.ioctl(fd, request, argument);
  const int octets = readable_octets(fd);
  if (!taken(fd)) return real.ioctl(fd, request, argument);
  *(int *)argument = octets;
  return 0;
}
