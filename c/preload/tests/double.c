/*
 * double.c - a stand-in for crates/haul-socket that needs no agent, to test the shim by itself.
 *
 * It takes every UDP socket, and every TCP connection between sockets of programs that it serves:
 * they connect from ports that they were told to (HAUL_RUN_ID=both), so the other end knows them.
 * Bytes go in frames of at most FRAME_MAX, each after "HD" and its length. A receive takes in as
 * much as it gets, so that bytes wait in user space often: that is what the shim's readiness is
 * about.
 */
#include "../haul_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define HEADER 4
#define FRAME_MAX 5000
#define HELD_MAX 70000
/* Ports from which taken connections are made. */
#define PORT_FIRST 20000
#define PORT_COUNT 8000

struct socket {
  pthread_mutex_t lock;
  atomic_int users;
  int kind;
  /* Decoded and not yet received. */
  char held[HELD_MAX];
  size_t held_length;
  /* Part of a frame. */
  char frame[HEADER + FRAME_MAX];
  size_t frame_length;
  /* The rest of a frame that the kernel had no room for. */
  char tail[HEADER + FRAME_MAX];
  size_t tail_length;
  bool ended;
  /* Counted for the tests, which want to know that anything was taken. */
  bool connected;
};

static struct socket *_Atomic sockets[DESCRIPTORS];
static atomic_uint next_port;
static bool both;

static struct socket *at(int fd) {
  return fd >= 0 && fd < DESCRIPTORS ? atomic_load(&sockets[fd]) : NULL;
}

static ssize_t kernel_recv(int fd, void *buffer, size_t length, int flags) {
  return syscall(SYS_recvfrom, fd, buffer, length, flags, NULL, NULL);
}

static ssize_t kernel_send(int fd, const void *buffer, size_t length, int flags) {
  return syscall(SYS_sendto, fd, buffer, length, flags, NULL, 0);
}

static int say(const char *text) {
  return (int)syscall(SYS_write, 2, text, strlen(text));
}

int haul_socket_start(const char *table, const char *run) {
  (void)table;
  if (run == NULL) return 0;
  both = strcmp(run, "both") == 0;
  /* Before libc's, so that its order of calls is the test's. */
  atomic_store(&next_port, (unsigned)getpid() * 37);
  if (getenv("HAUL_DOUBLE_SAYS") != NULL) say("double: started\n");
  return 1;
}

void haul_socket_forking(void) {
}

void haul_socket_spawning(void) {
}

void haul_socket_shared(int fd) {
  (void)fd;
}

void haul_socket_forked(void) {
  atomic_fetch_add(&next_port, (unsigned)getpid() * 37);
}

void haul_socket_before_exec(void) {}
void haul_socket_bound(int fd) {
  (void)fd;
}
void haul_socket_listening(int fd) {
  (void)fd;
}
void haul_socket_option(int fd, int level, int name) {
  (void)fd, (void)level, (void)name;
}

static void take(int fd, int kind) {
  if (fd < 0 || fd >= DESCRIPTORS) return;
  struct socket *socket = calloc(1, sizeof *socket);
  if (socket == NULL) return;
  pthread_mutex_init(&socket->lock, NULL);
  socket->kind = kind;
  socket->users = 1;
  haul_socket_closed(fd);
  atomic_store(&sockets[fd], socket);
}

void haul_socket_opened(int fd, int domain, int type, int protocol) {
  (void)domain, (void)protocol;
  haul_socket_closed(fd);
  if (both && (type & 0xf) == SOCK_DGRAM) take(fd, HAUL_SOCKET_DATAGRAM);
}

static bool is_ours(const struct sockaddr_storage *address) {
  const unsigned port = ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                              : ((const struct sockaddr_in *)address)->sin_port);
  return port >= PORT_FIRST && port < PORT_FIRST + PORT_COUNT;
}

static bool bind_ours(int fd, int family) {
  for (int attempt = 0; attempt < 200; attempt++) {
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    const in_port_t port = htons((uint16_t)(PORT_FIRST + atomic_fetch_add(&next_port, 1) % PORT_COUNT));
    socklen_t length = sizeof(struct sockaddr_in);
    if (family == AF_INET6) {
      ((struct sockaddr_in6 *)&address)->sin6_port = port;
      length = sizeof(struct sockaddr_in6);
    } else {
      ((struct sockaddr_in *)&address)->sin_port = port;
    }
    if (syscall(SYS_bind, fd, &address, length) == 0) return true;
  }
  return false;
}

/* Whether the descriptor is a TCP socket that has no name and no peer yet. */
static bool is_fresh_stream(int fd) {
  int type = 0;
  struct sockaddr_storage name;
  socklen_t length = sizeof type, name_length = sizeof name;
  if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) return false;
  if (syscall(SYS_getsockname, fd, &name, &name_length) != 0) return false;
  return ((struct sockaddr_in *)&name)->sin_port == 0;
}

int haul_socket_connect(int fd, const struct sockaddr *to, socklen_t length) {
  const bool ip = to != NULL && length >= sizeof(struct sockaddr_in) &&
                  (to->sa_family == AF_INET || (to->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)));
  const int saved = errno;
  const bool ours = both && ip && at(fd) == NULL && is_fresh_stream(fd) && bind_ours(fd, to->sa_family);
  errno = saved;
  const int result = (int)syscall(SYS_connect, fd, to, length);
  if (ours && (result == 0 || errno == EINPROGRESS)) {
    const int error = errno;
    take(fd, HAUL_SOCKET_STREAM);
    errno = error;
  }
  return result;
}

/* There are no gateways here. */
void haul_socket_error(int fd, int *error) {
  (void)fd;
  (void)error;
}
void haul_socket_peer(int fd, struct sockaddr *address, socklen_t room, socklen_t *length) {
  (void)fd;
  (void)address;
  (void)room;
  (void)length;
}

void haul_socket_accepted(int listener, int fd) {
  (void)listener;
  haul_socket_closed(fd);
  struct sockaddr_storage peer;
  socklen_t length = sizeof peer;
  if (both && syscall(SYS_getpeername, fd, &peer, &length) == 0 && is_ours(&peer)) take(fd, HAUL_SOCKET_STREAM);
}

void haul_socket_received(int fd) {
  haul_socket_closed(fd);
  int type = 0;
  socklen_t length = sizeof type;
  if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_DGRAM) {
    int domain = 0;
    length = sizeof domain;
    syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &length);
    if (domain == AF_INET || domain == AF_INET6) haul_socket_opened(fd, domain, type, 0);
  }
}

static ssize_t flush(int fd, struct socket *socket, int flags) {
  while (socket->tail_length > 0) {
    const ssize_t sent = kernel_send(fd, socket->tail, socket->tail_length, flags);
    if (sent < 0) return sent;
    socket->tail_length -= (size_t)sent;
    memmove(socket->tail, socket->tail + sent, socket->tail_length);
  }
  return 0;
}

void haul_socket_closed(int fd) {
  struct socket *socket = at(fd);
  if (socket == NULL) return;
  atomic_store(&sockets[fd], NULL);
  if (atomic_fetch_sub(&socket->users, 1) > 1) return;
  flush(fd, socket, MSG_NOSIGNAL);
  free(socket);
}

void haul_socket_duplicated(int from, int to) {
  struct socket *socket = at(from);
  if (socket == NULL || to < 0 || to >= DESCRIPTORS) return;
  atomic_fetch_add(&socket->users, 1);
  haul_socket_closed(to);
  atomic_store(&sockets[to], socket);
}

int haul_socket_kind(int fd) {
  const struct socket *socket = at(fd);
  return socket == NULL ? HAUL_SOCKET_NONE : socket->kind;
}

int haul_socket_pending(int fd) {
  struct socket *socket = at(fd);
  if (socket == NULL || socket->kind != HAUL_SOCKET_STREAM) return 0;
  pthread_mutex_lock(&socket->lock);
  const int pending = (int)socket->held_length;
  pthread_mutex_unlock(&socket->lock);
  return pending;
}

int haul_socket_shutdown(int fd, int how) {
  struct socket *socket = at(fd);
  if (how != SHUT_RD && socket->kind == HAUL_SOCKET_STREAM) flush(fd, socket, MSG_NOSIGNAL);
  return (int)syscall(SYS_shutdown, fd, how);
}

static void put_header(char *frame, size_t length) {
  frame[0] = 'H', frame[1] = 'D', frame[2] = (char)(length >> 8), frame[3] = (char)length;
}

static size_t total(const struct msghdr *message) {
  size_t sum = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++) sum += message->msg_iov[i].iov_len;
  return sum;
}

/* Copies between a flat buffer and the message's, from `skip` bytes on; returns how many. */
static size_t copy(const struct msghdr *message, size_t skip, char *flat, size_t length, bool into_message) {
  size_t done = 0;
  for (size_t i = 0; i < message->msg_iovlen && done < length; i++) {
    const struct iovec *vector = &message->msg_iov[i];
    if (skip >= vector->iov_len) {
      skip -= vector->iov_len;
      continue;
    }
    size_t part = vector->iov_len - skip;
    if (part > length - done) part = length - done;
    char *place = (char *)vector->iov_base + skip;
    memcpy(into_message ? place : flat + done, into_message ? flat + done : place, part);
    done += part;
    skip = 0;
  }
  return done;
}

static ssize_t send_datagram(int fd, const struct msghdr *message, int flags) {
  const size_t length = total(message);
  struct iovec vectors[1 + 16];
  char header[HEADER];
  if (length > 60000 || message->msg_iovlen > 16) return syscall(SYS_sendmsg, fd, message, flags);
  put_header(header, length);
  vectors[0] = (struct iovec){header, HEADER};
  for (size_t i = 0; i < message->msg_iovlen; i++) vectors[i + 1] = message->msg_iov[i];
  struct msghdr framed = *message;
  framed.msg_iov = vectors;
  framed.msg_iovlen = message->msg_iovlen + 1;
  const ssize_t sent = syscall(SYS_sendmsg, fd, &framed, flags);
  return sent < HEADER ? sent : sent - HEADER;
}

/* Whether the kernel will take a frame whole: what does not wait must not leave half of one
 * behind. */
static bool has_room(int fd) {
  uint32_t info[9] = {0}; /* of linux/sock_diag.h: the fourth is the limit, the sixth what is queued */
  socklen_t length = sizeof info;
  if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, info, &length) != 0) return true;
  return info[5] + 2 * (HEADER + FRAME_MAX) + 2048 <= info[3];
}

static ssize_t send_stream(int fd, struct socket *socket, const struct msghdr *message, int flags) {
  const size_t length = total(message);
  size_t sent = 0;
  if (length == 0) return syscall(SYS_sendmsg, fd, message, flags);
  if (flush(fd, socket, flags) < 0) return -1;
  /* No control data is for TCP. */
  if (message->msg_controllen > 0) return errno = EINVAL, -1;
  const bool waits = (flags & MSG_DONTWAIT) == 0 && (syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK) == 0;
  while (sent < length) {
    if (!waits && !has_room(fd)) return sent > 0 ? (ssize_t)sent : (errno = EAGAIN, -1);
    char *frame = socket->tail;
    const size_t part = copy(message, sent, frame + HEADER, FRAME_MAX, false);
    put_header(frame, part);
    const ssize_t result = kernel_send(fd, frame, HEADER + part, flags);
    if (result < 0) return sent > 0 ? (ssize_t)sent : -1;
    socket->tail_length = HEADER + part - (size_t)result;
    memmove(frame, frame + result, socket->tail_length);
    sent += part;
    if (flush(fd, socket, flags) < 0) break;
  }
  return (ssize_t)sent;
}

ssize_t haul_socket_sendmsg(int fd, const struct msghdr *message, int flags) {
  struct socket *socket = at(fd);
  if (socket->kind == HAUL_SOCKET_DATAGRAM) return send_datagram(fd, message, flags);
  pthread_mutex_lock(&socket->lock);
  const ssize_t result = send_stream(fd, socket, message, flags);
  const int saved = errno;
  pthread_mutex_unlock(&socket->lock);
  errno = saved;
  return result;
}

static ssize_t receive_datagram(int fd, struct msghdr *message, int flags) {
  char header[HEADER], rest[1];
  struct iovec vectors[1 + 1024 + 1];
  const size_t room = total(message);
  vectors[0] = (struct iovec){header, HEADER};
  memcpy(vectors + 1, message->msg_iov, message->msg_iovlen * sizeof *vectors);
  vectors[1 + message->msg_iovlen] = (struct iovec){rest, 0};
  struct msghdr framed = *message;
  framed.msg_iov = vectors;
  framed.msg_iovlen = message->msg_iovlen + 1;
  ssize_t length = syscall(SYS_recvmsg, fd, &framed, flags | MSG_TRUNC);
  if (length < 0) return length;
  message->msg_namelen = framed.msg_namelen;
  message->msg_controllen = framed.msg_controllen;
  message->msg_flags = framed.msg_flags;
  if ((flags & MSG_TRUNC) == 0 && (size_t)length <= room + HEADER) message->msg_flags &= ~MSG_TRUNC;
  if (length >= HEADER && header[0] == 'H' && header[1] == 'D') {
    length -= HEADER;
    return (flags & MSG_TRUNC) != 0 || (size_t)length <= room ? length : (ssize_t)room;
  }
  /* Plain: the tests send none that are longer than the first buffer. */
  const size_t kept = (size_t)length < HEADER ? (size_t)length : HEADER;
  if (room >= (size_t)length && message->msg_iovlen > 0) {
    memmove((char *)message->msg_iov[0].iov_base + kept, message->msg_iov[0].iov_base, (size_t)length - kept);
    memcpy(message->msg_iov[0].iov_base, header, kept);
  }
  return length;
}

int haul_socket_arrival(int fd, const struct msghdr *message, int flags, struct haul_socket_arrival *arrival) {
  const struct socket *socket = at(fd);
  if (socket == NULL || socket->kind != HAUL_SOCKET_DATAGRAM || message->msg_iovlen > 4 || (flags & MSG_OOB) != 0) return 0;
  arrival->message = *message;
  arrival->vectors[0] = (struct iovec){arrival->head, HEADER};
  if (message->msg_iovlen > 0) memcpy(arrival->vectors + 1, message->msg_iov, message->msg_iovlen * sizeof(struct iovec));
  static _Thread_local char rest[65536];
  arrival->vectors[1 + message->msg_iovlen] = (struct iovec){rest, sizeof rest};
  arrival->message.msg_iov = arrival->vectors;
  arrival->message.msg_iovlen = 2 + message->msg_iovlen;
  return 1;
}

ssize_t haul_socket_arrived(int fd, struct msghdr *message, int flags, const struct haul_socket_arrival *arrival, ssize_t length) {
  (void)fd;
  if (length < 0) return -1;
  const size_t room = total(message);
  message->msg_namelen = arrival->message.msg_namelen;
  message->msg_controllen = arrival->message.msg_controllen;
  message->msg_flags = arrival->message.msg_flags & ~MSG_TRUNC;
  size_t whole = (size_t)length;
  if (length >= HEADER && arrival->head[0] == 'H' && arrival->head[1] == 'D') {
    whole -= HEADER;
  } else if (message->msg_iovlen > 0 && room >= whole) {
    /* Plain: the tests send none that are longer than the first buffer. */
    const size_t kept = whole < HEADER ? whole : HEADER;
    memmove((char *)message->msg_iov[0].iov_base + kept, message->msg_iov[0].iov_base, whole - kept);
    memcpy(message->msg_iov[0].iov_base, arrival->head, kept);
  }
  if (whole > room) message->msg_flags |= MSG_TRUNC;
  return (ssize_t)((flags & MSG_TRUNC) != 0 || whole <= room ? whole : room);
}

/* Takes in what the kernel has. */
static int take_in(int fd, struct socket *socket) {
  while (!socket->ended && socket->held_length + FRAME_MAX <= HELD_MAX) {
    size_t want = HEADER;
    if (socket->frame_length >= HEADER) {
      want = HEADER + ((size_t)(uint8_t)socket->frame[2] << 8 | (uint8_t)socket->frame[3]);
      if (socket->frame[0] != 'H' || want > sizeof socket->frame) return errno = EPROTO, -1;
    }
    if (socket->frame_length == want) {
      memcpy(socket->held + socket->held_length, socket->frame + HEADER, want - HEADER);
      socket->held_length += want - HEADER;
      socket->frame_length = 0;
      continue;
    }
    const ssize_t got = kernel_recv(fd, socket->frame + socket->frame_length, want - socket->frame_length, MSG_DONTWAIT);
    if (got < 0) return -1;
    socket->ended = got == 0;
    socket->frame_length += (size_t)got;
  }
  return 0;
}

/* The rest of a frame must not wait for the next send of its socket: the peer may be who is called
 * now. */
static void flush_all(void) {
  for (int fd = 0; fd < DESCRIPTORS; fd++) {
    struct socket *socket = at(fd);
    if (socket == NULL || socket->tail_length == 0 || pthread_mutex_trylock(&socket->lock) != 0) continue;
    flush(fd, socket, MSG_DONTWAIT | MSG_NOSIGNAL);
    pthread_mutex_unlock(&socket->lock);
  }
}

static ssize_t receive_stream(int fd, struct socket *socket, struct msghdr *message, int flags) {
  const size_t room = total(message);
  if ((flags & MSG_OOB) != 0) return errno = EINVAL, -1;
  if (room == 0) return socket->held_length > 0 ? 0 : kernel_recv(fd, NULL, 0, flags);
  const int result = take_in(fd, socket);
  if (socket->held_length == 0 && !socket->ended) return result < 0 ? -1 : (errno = EAGAIN, -1);
  size_t done = socket->held_length < room ? socket->held_length : room;
  if ((flags & MSG_TRUNC) == 0) done = copy(message, 0, socket->held, done, true);
  message->msg_namelen = 0;
  message->msg_controllen = 0;
  message->msg_flags = 0;
  if ((flags & MSG_PEEK) == 0) {
    socket->held_length -= done;
    memmove(socket->held, socket->held + done, socket->held_length);
  }
  return (ssize_t)done;
}

ssize_t haul_socket_recvmsg(int fd, struct msghdr *message, int flags) {
  struct socket *socket = at(fd);
  if (socket->kind == HAUL_SOCKET_DATAGRAM) return receive_datagram(fd, message, flags);
  flush_all();
  pthread_mutex_lock(&socket->lock);
  const ssize_t result = receive_stream(fd, socket, message, flags);
  const int saved = errno;
  pthread_mutex_unlock(&socket->lock);
  errno = saved;
  return result;
}
