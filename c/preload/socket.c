/* socket.c - sockets come, are named, connected and configured. */
#include "shim.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool may_be_ours(int domain, int type) {
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  return (domain == AF_INET || domain == AF_INET6) && (kind == SOCK_DGRAM || kind == SOCK_STREAM);
}

EXPORT int socket(int domain, int type, int protocol) {
  const int fd = real.socket(domain, type, protocol);
  if (fd >= 0 && shim_active() && may_be_ours(domain, type)) {
    descriptor_opened(fd);
    haul_socket_opened(fd, domain, type, protocol);
  }
  return fd;
}

EXPORT int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t length) {
  const int result = real.bind(fd, address.__sockaddr__, length);
  if (result == 0 && shim_active()) haul_socket_bound(fd);
  return result;
}

EXPORT int listen(int fd, int backlog) {
  const int result = real.listen(fd, backlog);
  if (result == 0 && shim_active()) haul_socket_listening(fd);
  return result;
}

/* A socket of ours, or one that the process was started with and that is now used for the first
 * time. */
bool descriptor_is_known(int fd) {
  if (descriptor_known(fd) != NULL) return true;
  const int saved = errno;
  int domain = 0, type = 0;
  socklen_t length = sizeof(int);
  const bool ours = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
                    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && may_be_ours(domain, type);
  if (ours) descriptor_opened(fd);
  errno = saved;
  return ours;
}

EXPORT int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t length) {
  if (!shim_active() || !descriptor_is_known(fd)) return real.connect(fd, address.__sockaddr__, length);
  return haul_socket_connect(fd, address.__sockaddr__, length);
}

static int accepted(int listener, int fd) {
  if (fd >= 0 && shim_active() && descriptor_is_known(listener)) {
    descriptor_opened(fd);
    haul_socket_accepted(listener, fd);
  }
  return fd;
}

EXPORT int accept(int listener, __SOCKADDR_ARG address, socklen_t *restrict length) {
  return accepted(listener, real.accept(listener, address.__sockaddr__, length));
}

EXPORT int accept4(int listener, __SOCKADDR_ARG address, socklen_t *restrict length, int flags) {
  return accepted(listener, real.accept4(listener, address.__sockaddr__, length, flags));
}

EXPORT int shutdown(int fd, int how) {
  return taken(fd) ? haul_socket_shutdown(fd, how) : real.shutdown(fd, how);
}

/* The kernel would encrypt our frames, or report pages that it never saw. Applications do without
 * if the call fails. */
static bool cannot_be_kept(int fd, int level, int name) {
  const bool refused =
      (level == SOL_SOCKET && name == SO_ZEROCOPY) || (level == IPPROTO_TCP && name == TCP_ULP);
  return refused && haul_socket_kind(fd) == HAUL_SOCKET_STREAM;
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
  if (shim_active() && cannot_be_kept(fd, level, name)) {
    errno = level == SOL_SOCKET ? EOPNOTSUPP : ENOPROTOOPT;
    return -1;
  }
  const int result = real.setsockopt(fd, level, name, value, length);
  if (result == 0 && shim_active()) haul_socket_option(fd, level, name);
  return result;
}

/* The filter of `haul run` asks about SO_ERROR and the peer of sockets that are not known here. */
static bool is_own(int fd) {
  return shim_active() && descriptor_known(fd) != NULL;
}

EXPORT int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict length) {
  const int result = is_own(fd) ? (int)syscall(SYS_getsockopt, fd, level, name, value, length, HAUL_OWN)
                                : real.getsockopt(fd, level, name, value, length);
  const bool is_error = result == 0 && level == SOL_SOCKET && name == SO_ERROR && *length == sizeof(int);
  if (is_error && shim_active()) {
    int error;
    memcpy(&error, value, sizeof error);
    haul_socket_error(fd, &error);
    memcpy(value, &error, sizeof error);
  }
  return result;
}

EXPORT int getpeername(int fd, __SOCKADDR_ARG address, socklen_t *restrict length) {
  const socklen_t room = length == NULL ? 0 : *length;
  const int result = is_own(fd) ? (int)syscall(SYS_getpeername, fd, address.__sockaddr__, length, HAUL_OWN)
                                : real.getpeername(fd, address.__sockaddr__, length);
  if (result == 0 && shim_active()) haul_socket_peer(fd, address.__sockaddr__, room, length);
  return result;
}
