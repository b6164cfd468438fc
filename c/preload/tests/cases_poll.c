/* cases_poll.c - readiness by poll and select, above all after a part was received and the rest
 * waits. */
#include "calls.h"

typedef int ready_call(int fd, int ms);

static int with_poll(int fd, int ms) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, ms);
}

static int with_ppoll(int fd, int ms) {
  struct pollfd one = {.fd = fd, .events = POLLIN | POLLPRI};
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  return ppoll(&one, 1, &time, NULL);
}

int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask, size_t size);

static int with_poll_chk(int fd, int ms) {
  struct pollfd one[1] = {{.fd = fd, .events = POLLRDNORM}};
  return __poll_chk(one, 1, ms, sizeof one);
}

static int with_ppoll_chk(int fd, int ms) {
  struct pollfd one[1] = {{.fd = fd, .events = POLLIN}};
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  return __ppoll_chk(one, 1, &time, NULL, sizeof one);
}

static int with_select(int fd, int ms) {
  fd_set read;
  FD_ZERO(&read);
  FD_SET(fd, &read);
  struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  const int result = select(fd + 1, &read, NULL, NULL, &time);
  return result >= 0 && (FD_ISSET(fd, &read) != 0) != (result == 1) ? -2 : result;
}

static int with_pselect(int fd, int ms) {
  fd_set read, except;
  FD_ZERO(&read);
  FD_ZERO(&except);
  FD_SET(fd, &read);
  FD_SET(fd, &except);
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  return pselect(fd + 1, &read, NULL, &except, &time, NULL);
}

static const struct {
  const char *name;
  ready_call *call;
} calls[] = {
    {"poll", with_poll},     {"ppoll", with_ppoll},   {"__poll_chk", with_poll_chk}, {"__ppoll_chk", with_ppoll_chk},
    {"select", with_select}, {"pselect", with_pselect},
};

static void one_descriptor(const char *kind, ready_call *call, struct pair pair, bool stream) {
  char name[64], buffer[32];
  snprintf(name, sizeof name, "%s of nothing", kind);
  say_result(name, call(pair.b, 0));
  snprintf(name, sizeof name, "%s waits for nothing", kind);
  say_result(name, call(pair.b, MOMENT_MS));
  must(send(pair.a, "0123456789", 10, 0) == 10, "send");
  snprintf(name, sizeof name, "%s of ten octets", kind);
  say_result(name, call(pair.b, PATIENCE_MS));
  must(recv(pair.b, buffer, 2, 0) == 2, "recv");
  snprintf(name, sizeof name, "%s of the rest", kind);
  say_result(name, call(pair.b, stream ? PATIENCE_MS : 0));
  if (stream) must(recv(pair.b, buffer, sizeof buffer, 0) == 8, "recv");
  snprintf(name, sizeof name, "%s after all", kind);
  say_result(name, call(pair.b, 0));
  close(pair.a);
  if (stream) {
    snprintf(name, sizeof name, "%s of the end", kind);
    say_result(name, call(pair.b, PATIENCE_MS));
  }
  close(pair.b);
}

static void several(void) {
  struct pair one = tcp_pair(AF_INET), two = tcp_pair(AF_INET), three = udp_pair(AF_INET);
  int pipes[2];
  char buffer[8];
  must(pipe(pipes) == 0, "pipe");
  must(send(one.a, "abc", 3, 0) == 3 && send(three.a, "d", 1, 0) == 1 && write(pipes[1], "e", 1) == 1, "send");
  must(wait_readable(one.b) && wait_readable(three.b), "poll");
  must(recv(one.b, buffer, 1, 0) == 1, "recv");
  struct pollfd fds[6] = {
      {.fd = one.b, .events = POLLIN | POLLOUT}, {.fd = two.b, .events = POLLIN},      {.fd = three.b, .events = POLLIN},
      {.fd = pipes[0], .events = POLLIN},        {.fd = -1, .events = POLLIN},         {.fd = two.a, .events = POLLOUT},
  };
  say_result("poll of several", poll(fds, 6, PATIENCE_MS));
  say("poll of several says", "%x %x %x %x %x %x", (unsigned)fds[0].revents, (unsigned)fds[1].revents,
      (unsigned)fds[2].revents, (unsigned)fds[3].revents, (unsigned)fds[4].revents, (unsigned)fds[5].revents);
  fd_set read, write_set;
  FD_ZERO(&read);
  FD_ZERO(&write_set);
  FD_SET(one.b, &read), FD_SET(two.b, &read), FD_SET(three.b, &read), FD_SET(pipes[0], &read), FD_SET(two.a, &write_set);
  struct timeval time = {.tv_sec = 20};
  say_result("select of several", select(64, &read, &write_set, NULL, &time));
  say("select of several says", "%d %d %d %d %d", FD_ISSET(one.b, &read) != 0, FD_ISSET(two.b, &read) != 0,
      FD_ISSET(three.b, &read) != 0, FD_ISSET(pipes[0], &read) != 0, FD_ISSET(two.a, &write_set) != 0);
  say("select leaves the time", "%d", time.tv_sec >= 10);
  const int gone = dup(two.b);
  close(gone);
  struct pollfd bad = {.fd = gone, .events = POLLIN};
  say("poll of a closed one", "%d %x", poll(&bad, 1, 0), (unsigned)bad.revents);
  say_result("poll of none", poll(NULL, 0, 0));
  FD_ZERO(&read);
  FD_SET(gone, &read);
  time = (struct timeval){0};
  say_result("select of a closed one", select(64, &read, NULL, NULL, &time));
  close_pair(one), close_pair(two), close_pair(three);
  close(pipes[0]), close(pipes[1]);
}

/* A duplicate shares what waits. */
static void duplicates(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int copy = dup(pair.b);
  char buffer[8];
  must(send(pair.a, "abcdef", 6, 0) == 6, "send");
  must(wait_readable(pair.b), "poll");
  must(recv(pair.b, buffer, 2, 0) == 2, "recv");
  say_result("poll of a duplicate", with_poll(copy, PATIENCE_MS));
  close(pair.b);
  say("duplicate receives the rest", "%zd %.4s", recv(copy, buffer, sizeof buffer, 0), buffer);
  close(copy), close(pair.a);
}

static void *send_later(void *argument) {
  const int fd = *(const int *)argument;
  usleep(20000);
  if (send(fd, "late", 4, 0) != 4) printf("send failed\n");
  return NULL;
}

static void waited_for(void) {
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    struct pair pair = tcp_pair(AF_INET);
    pthread_t thread;
    must(pthread_create(&thread, NULL, send_later, &pair.a) == 0, "pthread_create");
    char name[64];
    snprintf(name, sizeof name, "%s is woken", calls[i].name);
    say_result(name, calls[i].call(pair.b, PATIENCE_MS));
    pthread_join(thread, NULL);
    close_pair(pair);
  }
}

void cases_poll(void) {
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    char name[32];
    snprintf(name, sizeof name, "tcp %s", calls[i].name);
    one_descriptor(name, calls[i].call, tcp_pair(AF_INET), true);
    snprintf(name, sizeof name, "udp %s", calls[i].name);
    one_descriptor(name, calls[i].call, udp_pair(AF_INET), false);
  }
  several();
  duplicates();
  waited_for();
}
