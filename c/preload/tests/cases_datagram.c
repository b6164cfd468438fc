/* cases_datagram.c - UDP: lengths, names, errors. */
#include "calls.h"

static void lengths(int family, const char *kind) {
  static const size_t lengths[] = {0, 1, 3, 4, 512, 1472, 1473, 9000, 32768, 60000};
  struct pair pair = udp_pair(family);
  char *out = malloc(70000), *in = malloc(70000);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    fill(out, lengths[i], (unsigned)i);
    const ssize_t sent = send(pair.a, out, lengths[i], 0), got = recv(pair.b, in, 70000, 0);
    char name[40];
    snprintf(name, sizeof name, "%s of %zu octets", kind, lengths[i]);
    say(name, "%zd %zd %s", sent, got, is_filled(in, got > 0 ? (size_t)got : 0, (unsigned)i) ? "equal" : "different");
  }
  char name[40];
  snprintf(name, sizeof name, "%s too long", kind);
  say_result(name, send(pair.a, out, 70000, 0));
  free(out), free(in);
  close_pair(pair);
}

static void truncated(void) {
  struct pair pair = udp_pair(AF_INET);
  char buffer[64] = {0};
  struct iovec vector = {buffer, 4};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
  must(send(pair.a, "0123456789", 10, 0) == 10 && send(pair.a, "abcdefghij", 10, 0) == 10, "send");
  must(send(pair.a, "", 0, 0) == 0 && send(pair.a, "klm", 3, 0) == 3, "send");
  say_result("udp peek", recv(pair.b, buffer, sizeof buffer, MSG_PEEK));
  say_result("udp peek of the whole length", recv(pair.b, buffer, 2, MSG_PEEK | MSG_TRUNC));
  say_result("udp short buffer", recvmsg(pair.b, &message, 0));
  say("udp short buffer's flag", "%d %.4s", (message.msg_flags & MSG_TRUNC) != 0, buffer);
  say_result("udp whole length of a short receive", recvmsg(pair.b, &message, MSG_TRUNC));
  say("udp which is flagged", "%d", (message.msg_flags & MSG_TRUNC) != 0);
  must(wait_readable(pair.b), "poll");
  say_result("udp FIONREAD of an empty one", readable(pair.b));
  say_result("udp empty one", recv(pair.b, buffer, sizeof buffer, 0));
  say_result("udp FIONREAD", readable(pair.b));
  vector.iov_len = sizeof buffer;
  say_result("udp fitting one", recvmsg(pair.b, &message, 0));
  say("udp which is not flagged", "%d", message.msg_flags);
  say_result("udp nothing is left", recv(pair.b, buffer, sizeof buffer, MSG_DONTWAIT));
  say_result("udp FIONREAD of nothing", readable(pair.b));
  must(send(pair.a, "x", 1, 0) == 1, "send");
  say_result("udp receive of no length", recv(pair.b, buffer, 0, 0));
  say_result("udp which took it", recv(pair.b, buffer, 1, MSG_DONTWAIT));
  close_pair(pair);
}

static bool same_name(const struct sockaddr_storage *name, int fd) {
  socklen_t length;
  const struct sockaddr_storage other = name_of(fd, &length);
  return memcmp(name, &other, length) == 0;
}

static void names(int family, const char *kind) {
  const int a = bound_socket(family, SOCK_DGRAM), b = bound_socket(family, SOCK_DGRAM), c = bound_socket(family, SOCK_DGRAM);
  socklen_t length, from_length;
  const struct sockaddr_storage name = name_of(b, &length);
  struct sockaddr_storage from = {0};
  char buffer[16], text[48];
  for (int i = 0; i < 3; i++) {
    must(sendto(i == 1 ? c : a, "hello", 5, 0, (const struct sockaddr *)&name, length) == 5, "sendto");
    from_length = sizeof from;
    must(recvfrom(b, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &from_length) == 5, "recvfrom");
    snprintf(text, sizeof text, "%s recvfrom says who %d", kind, i);
    say(text, "%u %d", from_length, same_name(&from, i == 1 ? c : a));
  }
  must(sendto(a, "hello", 5, 0, (const struct sockaddr *)&name, length) == 5, "sendto");
  from_length = 2;
  recvfrom(b, buffer, sizeof buffer, 0, (struct sockaddr *)&from, &from_length);
  snprintf(text, sizeof text, "%s recvfrom with little room", kind);
  say(text, "%u", from_length);
  must(sendto(a, "hello", 5, 0, (const struct sockaddr *)&name, length) == 5, "sendto");
  struct iovec vector = {buffer, sizeof buffer};
  struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &vector, .msg_iovlen = 1};
  must(recvmsg(b, &message, 0) == 5, "recvmsg");
  snprintf(text, sizeof text, "%s recvmsg says who", kind);
  say(text, "%u %d", message.msg_namelen, same_name(&from, a));
  must(sendto(b, "back", 4, 0, (struct sockaddr *)&from, message.msg_namelen) == 4, "sendto");
  snprintf(text, sizeof text, "%s answer", kind);
  say_result(text, recv(a, buffer, sizeof buffer, 0));
  must(connect(a, (const struct sockaddr *)&name, length) == 0, "connect");
  const struct sockaddr_storage self = name_of(a, &length);
  must(sendto(c, "foreign", 7, 0, (const struct sockaddr *)&self, length) == 7, "sendto");
  must(sendto(b, "own", 3, 0, (const struct sockaddr *)&self, length) == 3, "sendto");
  snprintf(text, sizeof text, "%s connected hears its peer only", kind);
  say_result(text, recv(a, buffer, sizeof buffer, 0));
  const struct sockaddr none = {.sa_family = AF_UNSPEC};
  snprintf(text, sizeof text, "%s disconnect", kind);
  say_result(text, connect(a, &none, sizeof none));
  snprintf(text, sizeof text, "%s send to nobody", kind);
  say_result(text, send(a, "x", 1, 0));
  from_length = sizeof from;
  snprintf(text, sizeof text, "%s getpeername of nobody", kind);
  say_result(text, getpeername(a, (struct sockaddr *)&from, &from_length));
  close(a), close(b), close(c);
}

static void many(void) {
  struct pair pair = udp_pair(AF_INET);
  struct mmsghdr out[20] = {0}, in[32] = {0};
  struct iovec parts[20], places[32];
  char octets[20][16], room[32][16];
  for (int i = 0; i < 20; i++) {
    snprintf(octets[i], sizeof octets[i], "no %d", i);
    parts[i] = (struct iovec){octets[i], strlen(octets[i])};
    out[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
  }
  for (int i = 0; i < 32; i++) {
    places[i] = (struct iovec){room[i], sizeof room[i]};
    in[i].msg_hdr = (struct msghdr){.msg_iov = &places[i], .msg_iovlen = 1};
  }
  say_result("udp sendmmsg of twenty", sendmmsg(pair.a, out, 20, 0));
  int got = 0;
  while (got < 20) {
    const int some = recvmmsg(pair.b, in + got, (unsigned)(20 - got), MSG_WAITFORONE, NULL);
    if (some <= 0) break;
    got += some;
  }
  bool equal = got == 20;
  for (int i = 0; i < got; i++) equal = equal && in[i].msg_len == parts[i].iov_len && memcmp(room[i], octets[i], in[i].msg_len) == 0;
  say("udp recvmmsg of twenty", "%d %s", got, equal ? "equal" : "different");
  say_result("udp recvmmsg of nothing", recvmmsg(pair.b, in, 4, MSG_DONTWAIT, NULL));
  must(send(pair.a, "a", 1, 0) == 1 && send(pair.a, "b", 1, 0) == 1, "send");
  say_result("udp recvmmsg waits for all", recvmmsg(pair.b, in, 2, 0, NULL));
  must(send(pair.a, "a", 1, 0) == 1, "send");
  struct timespec zero = {0};
  say_result("udp recvmmsg whose time is up", recvmmsg(pair.b, in, 2, 0, &zero));
  say_result("udp sendmmsg of none", sendmmsg(pair.a, out, 0, 0));
  close_pair(pair);
}

static void refused(void) {
  const int gone = bound_socket(AF_INET, SOCK_DGRAM), fd = socket(AF_INET, SOCK_DGRAM, 0);
  socklen_t length;
  const struct sockaddr_storage name = name_of(gone, &length);
  char buffer[8];
  close(gone);
  must(connect(fd, (const struct sockaddr *)&name, length) == 0, "connect");
  say_result("udp send to a closed port", send(fd, "x", 1, 0));
  struct pollfd one = {.fd = fd, .events = POLLIN};
  say_result("udp poll sees the error", poll(&one, 1, PATIENCE_MS));
  say("udp POLLERR", "%d", (one.revents & POLLERR) != 0);
  say_result("udp receive says refused", recv(fd, buffer, sizeof buffer, 0));
  say_result("udp then nothing", recv(fd, buffer, sizeof buffer, MSG_DONTWAIT));
  must(send(fd, "x", 1, 0) == 1, "send");
  must(poll(&one, 1, PATIENCE_MS) == 1, "poll");
  int error = 0;
  length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  say("udp SO_ERROR", "%s", error_name(error));
  close(fd);
  const int loud = socket(AF_INET, SOCK_DGRAM, 0);
  const struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_BROADCAST)};
  say_result("udp broadcast without leave", sendto(loud, "x", 1, 0, (const struct sockaddr *)&all, sizeof all));
  const struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  say_result("udp of another family", sendto(loud, "x", 1, 0, (const struct sockaddr *)&other, sizeof other));
  close(loud);
}

/* Control data reaches the program as the kernel gives it. */
static void control(void) {
  struct pair pair = udp_pair(AF_INET);
  const int on = 1;
  must(setsockopt(pair.b, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) == 0, "IP_PKTINFO");
  char buffer[16], room[128];
  struct iovec vector = {buffer, sizeof buffer};
  for (int i = 0; i < 3; i++) {
    must(send(pair.a, "packet", 6, 0) == 6, "send");
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    must(wait_readable(pair.b), "poll");
    const ssize_t got = recvmsg(pair.b, &message, 0);
    const struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    char name[32];
    snprintf(name, sizeof name, "udp IP_PKTINFO %d", i);
    say(name, "%zd %d", got, part != NULL && part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO);
  }
  close_pair(pair);
}

void cases_datagram(void) {
  lengths(AF_INET, "udp");
  lengths(AF_INET6, "udp6");
  truncated();
  names(AF_INET, "udp");
  names(AF_INET6, "udp6");
  many();
  refused();
  control();
}
