/* cases_matrix.c - every call that sends against every call that receives, over UDP and TCP. */
#include "calls.h"

#define LENGTH 300

typedef ssize_t transfer(int fd, char *buffer, size_t length);

/* A buffer in three parts, one of them empty. */
static struct iovec *parts(char *buffer, size_t length) {
  static struct iovec vectors[3];
  vectors[0] = (struct iovec){buffer, length / 3};
  vectors[1] = (struct iovec){buffer + length / 3, 0};
  vectors[2] = (struct iovec){buffer + length / 3, length - length / 3};
  return vectors;
}

static ssize_t with_send(int fd, char *buffer, size_t length) {
  return send(fd, buffer, length, 0);
}

static ssize_t with_sendto(int fd, char *buffer, size_t length) {
  return sendto(fd, buffer, length, MSG_NOSIGNAL, NULL, 0);
}

static ssize_t with_sendmsg(int fd, char *buffer, size_t length) {
  const struct msghdr message = {.msg_iov = parts(buffer, length), .msg_iovlen = 3};
  return sendmsg(fd, &message, 0);
}

static ssize_t with_sendmmsg(int fd, char *buffer, size_t length) {
  struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = parts(buffer, length), .msg_iovlen = 3}}};
  return sendmmsg(fd, messages, 1, 0) == 1 ? (ssize_t)messages[0].msg_len : -1;
}

static ssize_t with_write(int fd, char *buffer, size_t length) {
  return write(fd, buffer, length);
}

static ssize_t with_writev(int fd, char *buffer, size_t length) {
  return writev(fd, parts(buffer, length), 3);
}

static ssize_t with_pwritev2(int fd, char *buffer, size_t length) {
  return pwritev2(fd, parts(buffer, length), 3, -1, 0);
}

static ssize_t with_dprintf(int fd, char *buffer, size_t length) {
  (void)length;
  buffer[LENGTH - 1] = '\0';
  return dprintf(fd, "%s%c", "", 0) == 1 ? 1 : -1;
}

static ssize_t with_recv(int fd, char *buffer, size_t length) {
  return recv(fd, buffer, length, 0);
}

static ssize_t with_recvfrom(int fd, char *buffer, size_t length) {
  struct sockaddr_storage from;
  socklen_t from_length = sizeof from;
  return recvfrom(fd, buffer, length, 0, (struct sockaddr *)&from, &from_length);
}

static ssize_t with_recvmsg(int fd, char *buffer, size_t length) {
  struct msghdr message = {.msg_iov = parts(buffer, length), .msg_iovlen = 3};
  return recvmsg(fd, &message, 0);
}

static ssize_t with_recvmmsg(int fd, char *buffer, size_t length) {
  struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts(buffer, length), .msg_iovlen = 3}}};
  return recvmmsg(fd, messages, 1, MSG_WAITFORONE, NULL) == 1 ? (ssize_t)messages[0].msg_len : -1;
}

static ssize_t with_read(int fd, char *buffer, size_t length) {
  return read(fd, buffer, length);
}

static ssize_t with_readv(int fd, char *buffer, size_t length) {
  return readv(fd, parts(buffer, length), 3);
}

static ssize_t with_preadv2(int fd, char *buffer, size_t length) {
  return preadv2(fd, parts(buffer, length), 3, -1, 0);
}

/* What programs that are built with _FORTIFY_SOURCE call. */
ssize_t __recv_chk(int fd, void *buffer, size_t length, size_t size, int flags);
ssize_t __recvfrom_chk(int fd, void *buffer, size_t length, size_t size, int flags, struct sockaddr *from, socklen_t *n);
ssize_t __read_chk(int fd, void *buffer, size_t length, size_t size);

static ssize_t with_recv_chk(int fd, char *buffer, size_t length) {
  return __recv_chk(fd, buffer, length, length, 0);
}

static ssize_t with_recvfrom_chk(int fd, char *buffer, size_t length) {
  return __recvfrom_chk(fd, buffer, length, length, 0, NULL, NULL);
}

static ssize_t with_read_chk(int fd, char *buffer, size_t length) {
  return __read_chk(fd, buffer, length, length);
}

static const struct {
  const char *name;
  transfer *call;
} senders[] = {
    {"send", with_send},         {"sendto", with_sendto}, {"sendmsg", with_sendmsg}, {"sendmmsg", with_sendmmsg},
    {"write", with_write},       {"writev", with_writev}, {"pwritev2", with_pwritev2}, {"dprintf", with_dprintf},
}, receivers[] = {
    {"recv", with_recv},         {"recvfrom", with_recvfrom},         {"recvmsg", with_recvmsg},
    {"recvmmsg", with_recvmmsg}, {"read", with_read},                 {"readv", with_readv},
    {"preadv2", with_preadv2},   {"__recv_chk", with_recv_chk},       {"__recvfrom_chk", with_recvfrom_chk},
    {"__read_chk", with_read_chk},
};

#define COUNT(ARRAY) (sizeof(ARRAY) / sizeof *(ARRAY))

static void try_all(const char *kind, struct pair pair) {
  for (size_t i = 0; i < COUNT(senders); i++) {
    for (size_t j = 0; j < COUNT(receivers); j++) {
      char sent[LENGTH], received[LENGTH + 30], name[64];
      const unsigned seed = (unsigned)(i * 16 + j);
      fill(sent, sizeof sent, seed);
      memset(received, 0, sizeof received);
      const ssize_t out = senders[i].call(pair.a, sent, sizeof sent);
      const ssize_t in = receivers[j].call(pair.b, received, sizeof received);
      snprintf(name, sizeof name, "%s %s to %s", kind, senders[i].name, receivers[j].name);
      const bool equal = out == 1 || is_filled(received, out > 0 ? (size_t)out : 0, seed);
      say(name, "%zd sent, %zd received, %s", out, in, equal ? "equal" : "different");
    }
  }
  close_pair(pair);
}

void cases_matrix(void) {
  try_all("udp", udp_pair(AF_INET));
  try_all("tcp", tcp_pair(AF_INET));
  try_all("tcp6", tcp_pair(AF_INET6));
}
