/* send.c - every way to send, made of haul_socket_sendmsg. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define VECTORS_MAX 1024
/* What sendfile reads at once. On the stack, so that threads do not share it and nobody has to free
 * it. */
#define FILE_CHUNK 32768

ssize_t taken_sendmsg(int fd, const struct msghdr *message, int flags) {
  /* The interface waits in the kernel, where no thread is cancelled. */
  if ((flags & MSG_DONTWAIT) == 0) pthread_testcancel();
  const ssize_t result = haul_socket_sendmsg(fd, message, flags);
  if (result < 0 && descriptor_is_stale(fd, errno)) return real.sendmsg(fd, message, flags);
  return result;
}

static ssize_t send_to(int fd, const void *buffer, size_t length, int flags, const struct sockaddr *to, socklen_t to_length) {
  struct iovec vector = {.iov_base = (void *)(uintptr_t)buffer, .iov_len = length};
  const struct msghdr message = {
      .msg_name = (void *)(uintptr_t)to, .msg_namelen = to == NULL ? 0 : to_length, .msg_iov = &vector, .msg_iovlen = 1};
  return taken_sendmsg(fd, &message, flags);
}

ssize_t taken_send(int fd, const void *buffer, size_t length, int flags) {
  return send_to(fd, buffer, length, flags, NULL, 0);
}

EXPORT ssize_t send(int fd, const void *buffer, size_t length, int flags) {
  return taken(fd) ? taken_send(fd, buffer, length, flags) : real.send(fd, buffer, length, flags);
}

/* What connects by sending (MSG_FASTOPEN) connects first, where the interface sees where to, and
 * then sends: as it does without a cookie of the destination's. A non-blocking call gets
 * EINPROGRESS, and has sent nothing. */
static bool connects(int fd, const struct sockaddr *to, int flags) {
  if ((flags & MSG_FASTOPEN) == 0 || to == NULL || to->sa_family == AF_UNSPEC || !shim_active()) return false;
  int type = 0;
  socklen_t length = sizeof type;
  return descriptor_is_known(fd) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

static ssize_t connect_and_send(int fd, const struct msghdr *message, int flags) {
  struct msghdr rest = *message;
  rest.msg_name = NULL;
  rest.msg_namelen = 0;
  const int status = (flags & MSG_DONTWAIT) != 0 ? fcntl(fd, F_GETFL) : -1;
  const bool waits = status >= 0 && (status & O_NONBLOCK) == 0;
  if (waits) fcntl(fd, F_SETFL, status | O_NONBLOCK);
  const int connected = connect(fd, message->msg_name, message->msg_namelen);
  if (waits) {
    const int saved = errno;
    fcntl(fd, F_SETFL, status);
    errno = saved;
  }
  if (connected != 0) return -1;
  return sendmsg(fd, &rest, flags & ~MSG_FASTOPEN);
}

EXPORT ssize_t sendto(int fd, const void *buffer, size_t length, int flags, __CONST_SOCKADDR_ARG to, socklen_t to_length) {
  if (!taken(fd) && connects(fd, to.__sockaddr__, flags)) {
    struct iovec vector = {.iov_base = (void *)(uintptr_t)buffer, .iov_len = length};
    const struct msghdr message = {
        .msg_name = (void *)(uintptr_t)to.__sockaddr__, .msg_namelen = to_length, .msg_iov = &vector, .msg_iovlen = 1};
    return connect_and_send(fd, &message, flags);
  }
  if (!taken(fd)) return real.sendto(fd, buffer, length, flags, to.__sockaddr__, to_length);
  return send_to(fd, buffer, length, flags, to.__sockaddr__, to_length);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  if (taken(fd)) return taken_sendmsg(fd, message, flags);
  if (message != NULL && connects(fd, message->msg_name, flags)) return connect_and_send(fd, message, flags);
  return real.sendmsg(fd, message, flags);
}

/* An error after the first message is for the next call, as in the kernel. */
EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags) {
  const bool fast = count > 0 && messages != NULL && connects(fd, messages->msg_hdr.msg_name, flags);
  if (!taken(fd) && !fast) return real.sendmmsg(fd, messages, count, flags);
  int sent = 0;
  for (unsigned i = 0; i < count && i < VECTORS_MAX; i++) {
    const ssize_t result = sendmsg(fd, &messages[i].msg_hdr, flags);
    if (result < 0) return sent > 0 ? sent : -1;
    messages[i].msg_len = (unsigned)result;
    sent++;
  }
  return sent;
}

EXPORT ssize_t write(int fd, const void *buffer, size_t length) {
  return taken(fd) ? taken_send(fd, buffer, length, 0) : real.write(fd, buffer, length);
}

static ssize_t send_vector(int fd, const struct iovec *vectors, int count, int flags) {
  if (count < 0 || count > VECTORS_MAX) {
    errno = EINVAL;
    return -1;
  }
  const struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)vectors, .msg_iovlen = (size_t)count};
  return taken_sendmsg(fd, &message, flags);
}

EXPORT ssize_t writev(int fd, const struct iovec *vectors, int count) {
  return taken(fd) ? send_vector(fd, vectors, count, 0) : real.writev(fd, vectors, count);
}

/* Sockets have no other position than the current one, which is -1. */
static bool is_plain_write(int fd, off64_t offset, int flags) {
  return taken(fd) && offset == -1 && (flags & ~(RWF_NOWAIT | RWF_HIPRI)) == 0;
}

EXPORT ssize_t pwritev2(int fd, const struct iovec *vectors, int count, off_t offset, int flags) {
  if (!is_plain_write(fd, offset, flags)) return real.pwritev2(fd, vectors, count, offset, flags);
  return send_vector(fd, vectors, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
}

EXPORT ssize_t pwritev64v2(int fd, const struct iovec *vectors, int count, off64_t offset, int flags) {
  if (!is_plain_write(fd, offset, flags)) return real.pwritev64v2(fd, vectors, count, offset, flags);
  return send_vector(fd, vectors, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
}

/* Reads where the caller's offset or the file's own is, and moves it by what was sent. */
static ssize_t send_file(int fd, int file, off64_t *offset, size_t count) {
  off64_t position = offset != NULL ? *offset : lseek64(file, 0, SEEK_CUR);
  if (position < 0) {
    if (offset != NULL) errno = EINVAL;
    return -1;
  }
  char buffer[FILE_CHUNK];
  size_t sent = 0;
  ssize_t result = 0;
  while (sent < count) {
    const size_t left = count - sent;
    const ssize_t length = pread64(file, buffer, left < sizeof buffer ? left : sizeof buffer, position);
    result = length;
    if (length <= 0) break;
    result = taken_send(fd, buffer, (size_t)length, 0);
    if (result < 0) break;
    sent += (size_t)result;
    position += result;
    if (result < length) break;
  }
  const int saved = errno;
  if (offset != NULL)
    *offset = position;
  else
    lseek64(file, position, SEEK_SET);
  errno = saved;
  return sent > 0 ? (ssize_t)sent : result;
}

EXPORT ssize_t sendfile(int fd, int file, off_t *offset, size_t count) {
  _Static_assert(sizeof(off_t) == sizeof(off64_t), "where off_t is short, sendfile needs an offset of its own");
  return taken(fd) ? send_file(fd, file, offset, count) : real.sendfile(fd, file, offset, count);
}

EXPORT ssize_t sendfile64(int fd, int file, off64_t *offset, size_t count) {
  return taken(fd) ? send_file(fd, file, offset, count) : real.sendfile64(fd, file, offset, count);
}

/* Pages between a pipe and a taken socket would pass us by. Programs that splice read and write
 * where it is refused so. */
EXPORT ssize_t splice(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t length, unsigned flags) {
  if (taken(from) || taken(to)) {
    errno = EINVAL;
    return -1;
  }
  return real.splice(from, from_offset, to, to_offset, length, flags);
}
