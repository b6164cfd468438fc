/* cases_epoll.c - epoll: level-triggered, edge-triggered and one-shot, with the rest of something
 * waiting. */
#include "calls.h"

static int add(int epoll, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int change(int epoll, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  return epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

/* "how many: what, of the right descriptor". */
static void say_events(const char *name, int epoll, int fd, int ms) {
  struct epoll_event events[8];
  const int count = epoll_wait(epoll, events, 8, ms);
  if (count <= 0)
    say_result(name, count);
  else
    say(name, "%d: %x %s", count, events[0].events, events[0].data.fd == fd ? "right" : "wrong");
}

static void level(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  char buffer[16];
  say_result("epoll add", add(epoll, pair.b, EPOLLIN | EPOLLRDHUP));
  say_result("epoll add again", add(epoll, pair.b, EPOLLIN));
  say_events("epoll level of nothing", epoll, pair.b, 0);
  must(send(pair.a, "0123456789", 10, 0) == 10, "send");
  say_events("epoll level", epoll, pair.b, PATIENCE_MS);
  say_events("epoll level again", epoll, pair.b, PATIENCE_MS);
  must(recv(pair.b, buffer, 3, 0) == 3, "recv");
  say_events("epoll level of the rest", epoll, pair.b, PATIENCE_MS);
  say_result("epoll change", change(epoll, pair.b, EPOLLOUT));
  say_events("epoll asked for writing", epoll, pair.b, PATIENCE_MS);
  change(epoll, pair.b, EPOLLIN | EPOLLOUT);
  say_events("epoll asked for both", epoll, pair.b, PATIENCE_MS);
  change(epoll, pair.b, EPOLLIN);
  must(recv(pair.b, buffer, sizeof buffer, 0) == 7, "recv");
  say_events("epoll level after all", epoll, pair.b, 0);
  change(epoll, pair.b, EPOLLIN | EPOLLRDHUP);
  must(send(pair.a, "end", 3, 0) == 3, "send");
  close(pair.a);
  must(recv(pair.b, buffer, 1, 0) == 1, "recv");
  struct pollfd hung = {.fd = pair.b, .events = POLLRDHUP};
  must(poll(&hung, 1, PATIENCE_MS) == 1, "poll");
  say_events("epoll of the rest and the end", epoll, pair.b, PATIENCE_MS);
  say_result("epoll delete", epoll_ctl(epoll, EPOLL_CTL_DEL, pair.b, NULL));
  say_events("epoll of nobody", epoll, pair.b, 0);
  say_result("epoll delete again", epoll_ctl(epoll, EPOLL_CTL_DEL, pair.b, NULL));
  close(pair.b), close(epoll);
}

static void edge(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int epoll = epoll_create(1);
  char buffer[16];
  set_nonblocking(pair.b);
  add(epoll, pair.b, EPOLLIN | EPOLLET);
  must(send(pair.a, "0123456789", 10, 0) == 10, "send");
  say_events("epoll edge", epoll, pair.b, PATIENCE_MS);
  say_events("epoll edge once", epoll, pair.b, MOMENT_MS);
  must(recv(pair.b, buffer, 3, 0) == 3, "recv");
  say_events("epoll edge is none for the rest", epoll, pair.b, MOMENT_MS);
  say_result("epoll edge changed", change(epoll, pair.b, EPOLLIN | EPOLLET));
  say_events("epoll edge after a change", epoll, pair.b, PATIENCE_MS);
  say_events("epoll edge after a change once", epoll, pair.b, MOMENT_MS);
  must(recv(pair.b, buffer, sizeof buffer, 0) == 7, "recv");
  say_result("epoll edge is drained", recv(pair.b, buffer, sizeof buffer, 0));
  must(send(pair.a, "more", 4, 0) == 4, "send");
  say_events("epoll edge again", epoll, pair.b, PATIENCE_MS);
  must(recv(pair.b, buffer, 1, 0) == 1, "recv");
  epoll_ctl(epoll, EPOLL_CTL_DEL, pair.b, NULL);
  add(epoll, pair.b, EPOLLIN | EPOLLET);
  say_events("epoll edge added to a rest", epoll, pair.b, PATIENCE_MS);
  close_pair(pair), close(epoll);
}

static void one_shot(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int epoll = epoll_create1(0);
  char buffer[16];
  const uint32_t once = EPOLLIN | (uint32_t)EPOLLONESHOT;
  add(epoll, pair.b, once);
  must(send(pair.a, "0123456789", 10, 0) == 10, "send");
  say_events("epoll one-shot", epoll, pair.b, PATIENCE_MS);
  must(recv(pair.b, buffer, 3, 0) == 3, "recv");
  say_events("epoll one-shot once", epoll, pair.b, MOMENT_MS);
  change(epoll, pair.b, once);
  say_events("epoll one-shot armed again", epoll, pair.b, PATIENCE_MS);
  say_events("epoll one-shot once again", epoll, pair.b, MOMENT_MS);
  must(recv(pair.b, buffer, sizeof buffer, 0) == 7, "recv");
  change(epoll, pair.b, once);
  say_events("epoll one-shot of nothing", epoll, pair.b, MOMENT_MS);
  must(send(pair.a, "x", 1, 0) == 1, "send");
  say_events("epoll one-shot of a new octet", epoll, pair.b, PATIENCE_MS);
  close_pair(pair), close(epoll);
}

static void datagrams(void) {
  struct pair pair = udp_pair(AF_INET);
  const int epoll = epoll_create1(0);
  char buffer[16];
  add(epoll, pair.b, EPOLLIN);
  say_events("epoll of no datagram", epoll, pair.b, 0);
  must(send(pair.a, "one", 3, 0) == 3 && send(pair.a, "two", 3, 0) == 3, "send");
  say_events("epoll of two datagrams", epoll, pair.b, PATIENCE_MS);
  must(recv(pair.b, buffer, sizeof buffer, 0) == 3, "recv");
  say_events("epoll of one datagram", epoll, pair.b, PATIENCE_MS);
  must(recv(pair.b, buffer, sizeof buffer, 0) == 3, "recv");
  say_events("epoll of none", epoll, pair.b, 0);
  change(epoll, pair.b, EPOLLIN | EPOLLET);
  must(send(pair.a, "three", 5, 0) == 5, "send");
  say_events("epoll edge of a datagram", epoll, pair.b, PATIENCE_MS);
  say_events("epoll edge of it once", epoll, pair.b, MOMENT_MS);
  close_pair(pair), close(epoll);
}

/* Two that hold something, room for one: both have their turn. */
static void turns(void) {
  struct pair one = tcp_pair(AF_INET), two = tcp_pair(AF_INET), whole = tcp_pair(AF_INET);
  const int epoll = epoll_create1(0);
  char buffer[8];
  const int fds[3] = {one.b, two.b, whole.b};
  must(send(one.a, "abc", 3, 0) == 3 && send(two.a, "abc", 3, 0) == 3 && send(whole.a, "abc", 3, 0) == 3, "send");
  for (int i = 0; i < 3; i++) {
    must(wait_readable(fds[i]), "poll");
    add(epoll, fds[i], EPOLLIN);
  }
  must(recv(one.b, buffer, 1, 0) == 1 && recv(two.b, buffer, 1, 0) == 1, "recv");
  bool seen[3] = {false};
  for (int i = 0; i < 24 && !(seen[0] && seen[1] && seen[2]); i++) {
    struct epoll_event event;
    if (epoll_wait(epoll, &event, 1, PATIENCE_MS) != 1) break;
    for (int j = 0; j < 3; j++) {
      if (event.data.fd != fds[j] || seen[j]) continue;
      seen[j] = true;
      while (recv(fds[j], buffer, sizeof buffer, MSG_DONTWAIT) > 0) continue;
    }
  }
  say("epoll with room for one", "%d %d %d", seen[0], seen[1], seen[2]);
  must(send(one.a, "abc", 3, 0) == 3 && send(two.a, "abc", 3, 0) == 3, "send");
  must(wait_readable(one.b) && wait_readable(two.b), "poll");
  must(recv(one.b, buffer, 1, 0) == 1, "recv");
  struct epoll_event events[8];
  say_result("epoll of a rest and a whole", epoll_wait(epoll, events, 8, PATIENCE_MS));
  close_pair(one), close_pair(two), close_pair(whole), close(epoll);
}

static void nested(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int inner = epoll_create1(0), outer = epoll_create1(0);
  char buffer[8];
  add(inner, pair.b, EPOLLIN);
  add(outer, inner, EPOLLIN);
  must(send(pair.a, "abc", 3, 0) == 3, "send");
  say_events("epoll of an epoll", outer, inner, PATIENCE_MS);
  must(recv(pair.b, buffer, 1, 0) == 1, "recv");
  struct pollfd one = {.fd = inner, .events = POLLIN};
  say_result("poll of an epoll with a rest", poll(&one, 1, PATIENCE_MS));
  const int copy = dup(inner);
  say_events("epoll by a duplicate", copy, pair.b, PATIENCE_MS);
  must(recv(pair.b, buffer, sizeof buffer, 0) == 2, "recv");
  say_result("poll of an epoll after all", poll(&one, 1, 0));
  close_pair(pair), close(inner), close(outer), close(copy);
}

struct waiter {
  int epoll, fd;
  atomic_int woken;
};

static void *wait_thread(void *argument) {
  struct waiter *waiter = argument;
  struct epoll_event event;
  if (epoll_wait(waiter->epoll, &event, 1, PATIENCE_MS) == 1) atomic_store(&waiter->woken, event.data.fd == waiter->fd);
  return NULL;
}

/* One thread receives a part and arms the socket again, while another waits already. */
static void handed_over(void) {
  struct pair pair = tcp_pair(AF_INET);
  struct waiter waiter = {.epoll = epoll_create1(0), .fd = pair.b};
  char buffer[16];
  add(waiter.epoll, pair.b, EPOLLIN | (uint32_t)EPOLLONESHOT);
  must(send(pair.a, "0123456789", 10, 0) == 10, "send");
  say_events("epoll for the first thread", waiter.epoll, pair.b, PATIENCE_MS);
  pthread_t thread;
  must(pthread_create(&thread, NULL, wait_thread, &waiter) == 0, "pthread_create");
  must(recv(pair.b, buffer, 4, 0) == 4, "recv");
  usleep(20000);
  change(waiter.epoll, pair.b, EPOLLIN | (uint32_t)EPOLLONESHOT);
  pthread_join(thread, NULL);
  say("epoll for the second thread", "%d", atomic_load(&waiter.woken));
  close(waiter.epoll);
  close_pair(pair);
}

static void variants(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int epoll = epoll_create1(0);
  struct epoll_event event;
  char buffer[8];
  const struct timespec none = {0}, long_time = {.tv_sec = PATIENCE_MS / 1000};
  add(epoll, pair.b, EPOLLIN);
  say_result("epoll_pwait of nothing", epoll_pwait(epoll, &event, 1, 0, NULL));
  say_result("epoll_pwait2 of nothing", epoll_pwait2(epoll, &event, 1, &none, NULL));
  must(send(pair.a, "abc", 3, 0) == 3, "send");
  say_result("epoll_pwait", epoll_pwait(epoll, &event, 1, PATIENCE_MS, NULL));
  must(recv(pair.b, buffer, 1, 0) == 1, "recv");
  say_result("epoll_pwait of the rest", epoll_pwait(epoll, &event, 1, PATIENCE_MS, NULL));
  say_result("epoll_pwait2 of the rest", epoll_pwait2(epoll, &event, 1, &long_time, NULL));
  say_result("epoll_wait with no room", epoll_wait(epoll, &event, 0, 0));
  say_result("epoll_create of nothing", epoll_create(0));
  say_result("epoll_ctl of no epoll", add(pair.a, pair.b, EPOLLIN));
  say_result("epoll_wait of no epoll", epoll_wait(pair.a, &event, 1, 0));
  close(pair.b);
  say_result("epoll_wait after close", epoll_wait(epoll, &event, 1, 0));
  close(pair.a), close(epoll);
}

void cases_epoll(void) {
  level();
  edge();
  one_shot();
  datagrams();
  turns();
  nested();
  handed_over();
  variants();
}
