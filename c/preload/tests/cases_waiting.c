/* cases_waiting.c - calls that wait: timeouts, signals, cancellation, threads. */
#include "calls.h"

static void timeouts(const char *kind, struct pair pair) {
  char name[64], buffer[8];
  set_timeout(pair.b, SO_RCVTIMEO, MOMENT_MS);
  snprintf(name, sizeof name, "%s SO_RCVTIMEO", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  snprintf(name, sizeof name, "%s SO_RCVTIMEO with read", kind);
  say_result(name, read(pair.b, buffer, sizeof buffer));
  must(send(pair.a, "x", 1, 0) == 1, "send");
  snprintf(name, sizeof name, "%s in time", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  set_timeout(pair.b, SO_RCVTIMEO, 0);
  set_nonblocking(pair.b);
  snprintf(name, sizeof name, "%s O_NONBLOCK", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  snprintf(name, sizeof name, "%s O_NONBLOCK with readv", kind);
  struct iovec vector = {buffer, sizeof buffer};
  say_result(name, readv(pair.b, &vector, 1));
  snprintf(name, sizeof name, "%s O_NONBLOCK with MSG_WAITALL", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, MSG_WAITALL));
  close_pair(pair);
}

/* A full connection: send reports it, or waits as long as it was told. */
static void full(void) {
  struct pair pair = tcp_pair(AF_INET);
  char *buffer = calloc(1, 100000);
  const int small = 20000;
  setsockopt(pair.a, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  set_timeout(pair.a, SO_SNDTIMEO, MOMENT_MS);
  ssize_t sent;
  size_t total = 0, got = 0;
  while ((sent = send(pair.a, buffer, 100000, 0)) > 0) total += (size_t)sent;
  say_result("tcp SO_SNDTIMEO", sent);
  /* The receiver's window may have grown meanwhile. */
  while ((sent = send(pair.a, buffer, 1000, MSG_DONTWAIT)) > 0) total += (size_t)sent;
  say_result("tcp full with MSG_DONTWAIT", sent);
  struct pollfd one = {.fd = pair.a, .events = POLLOUT};
  while (got < total) {
    const ssize_t n = recv(pair.b, buffer, 100000, 0);
    if (n <= 0) break;
    got += (size_t)n;
  }
  say("tcp everything sent arrives", "%d", got == total);
  say_result("tcp polled again", poll(&one, 1, PATIENCE_MS));
  say_result("tcp sends again", send(pair.a, "x", 1, 0));
  free(buffer);
  close_pair(pair);
}

static void signals(const char *kind, struct pair pair) {
  char name[64], buffer[8];
  interrupt_after(SIGUSR1, false, 5);
  snprintf(name, sizeof name, "%s recv is interrupted", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  snprintf(name, sizeof name, "%s read is interrupted", kind);
  say_result(name, read(pair.b, buffer, sizeof buffer));
  struct pollfd one = {.fd = pair.b, .events = POLLIN};
  snprintf(name, sizeof name, "%s poll is interrupted", kind);
  say_result(name, poll(&one, 1, PATIENCE_MS));
  fd_set read_set;
  FD_ZERO(&read_set);
  FD_SET(pair.b, &read_set);
  snprintf(name, sizeof name, "%s select is interrupted", kind);
  say_result(name, select(pair.b + 1, &read_set, NULL, NULL, NULL));
  const int epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  epoll_ctl(epoll, EPOLL_CTL_ADD, pair.b, &event);
  snprintf(name, sizeof name, "%s epoll_wait is interrupted", kind);
  say_result(name, epoll_wait(epoll, &event, 1, PATIENCE_MS));
  stop_interrupting();
  close(epoll);

  interrupt_after(SIGUSR1, true, 5);
  set_timeout(pair.b, SO_RCVTIMEO, 0);
  pid_t child = fork();
  if (child == 0) {
    usleep(60000);
    _exit(send(pair.a, "late", 4, 0) == 4 ? 0 : 1);
  }
  snprintf(name, sizeof name, "%s recv restarts", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  say("signals came meanwhile", "%d", interrupts() > 0);
  stop_interrupting();
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  snprintf(name, sizeof name, "%s child sent", kind);
  say(name, "%d", status);
  close_pair(pair);
}

/* A signal that is let through only while the call waits. */
static void masks(void) {
  struct pair pair = tcp_pair(AF_INET);
  sigset_t blocked, none;
  char buffer[8];
  sigemptyset(&none);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  must(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0, "sigprocmask");
  interrupt_after(SIGUSR2, false, 5);
  struct pollfd one = {.fd = pair.b, .events = POLLIN};
  say_result("ppoll lets a signal in", ppoll(&one, 1, NULL, &none));
  fd_set read_set;
  FD_ZERO(&read_set);
  FD_SET(pair.b, &read_set);
  say_result("pselect lets a signal in", pselect(pair.b + 1, &read_set, NULL, NULL, NULL, &none));
  const int epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN};
  epoll_ctl(epoll, EPOLL_CTL_ADD, pair.b, &event);
  say_result("epoll_pwait lets a signal in", epoll_pwait(epoll, &event, 1, PATIENCE_MS, &none));
  stop_interrupting();
  must(send(pair.a, "abc", 3, 0) == 3, "send");
  must(wait_readable(pair.b), "poll");
  must(recv(pair.b, buffer, 1, 0) == 1, "recv");
  say_result("ppoll of a rest with a mask", ppoll(&one, 1, NULL, &none));
  sigprocmask(SIG_UNBLOCK, &blocked, NULL);
  close(epoll);
  close_pair(pair);
}

static struct pair handled;
static atomic_int handler_sent;

static void send_in_handler(int number) {
  (void)number;
  const int saved = errno;
  if (send(handled.a, "signal", 6, MSG_DONTWAIT) == 6) atomic_fetch_add(&handler_sent, 1);
  errno = saved;
}

/* A handler sends on the socket that the interrupted thread is sending on. */
static void in_handler(void) {
  handled = udp_pair(AF_INET);
  struct sigaction action = {.sa_handler = send_in_handler, .sa_flags = SA_RESTART};
  must(sigaction(SIGUSR1, &action, NULL) == 0, "sigaction");
  bool whole = true;
  int sent = 0, received = 0;
  char buffer[64];
  const struct itimerspec every = {.it_value.tv_nsec = 1000000, .it_interval.tv_nsec = 1000000};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  timer_t timer;
  must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &every, NULL) == 0, "timer");
  while (sent < 4000 || atomic_load(&handler_sent) < 3) {
    if (send(handled.a, "ordinary", 8, MSG_DONTWAIT) == 8) sent++;
    ssize_t got;
    while ((got = recv(handled.b, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
      whole = whole && ((got == 8 && memcmp(buffer, "ordinary", 8) == 0) || (got == 6 && memcmp(buffer, "signal", 6) == 0));
      received++;
    }
  }
  timer_delete(timer);
  say("udp send in a handler", "%s %s", whole ? "whole" : "broken", received > 3000 ? "arrived" : "lost");
  close_pair(handled);
}

static void *receive_forever(void *argument) {
  char buffer[8];
  for (;;) {
    if (recv(*(const int *)argument, buffer, sizeof buffer, 0) <= 0) return NULL;
  }
}

static void *poll_forever(void *argument) {
  struct pollfd one = {.fd = *(const int *)argument, .events = POLLIN};
  while (poll(&one, 1, -1) >= 0) continue;
  return NULL;
}

static void *epoll_forever(void *argument) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN};
  epoll_ctl(epoll, EPOLL_CTL_ADD, *(const int *)argument, &event);
  while (epoll_wait(epoll, &event, 1, -1) >= 0) continue;
  return NULL;
}

static void cancelled(const char *name, void *(*function)(void *), struct pair pair) {
  pthread_t thread;
  void *result = NULL;
  must(pthread_create(&thread, NULL, function, &pair.b) == 0, "pthread_create");
  usleep(10000);
  pthread_cancel(thread);
  pthread_join(thread, &result);
  say(name, "%d", result == PTHREAD_CANCELED);
  close_pair(pair);
}

struct worker {
  int fd;
  atomic_int *left;
  atomic_int got, wrong;
};

static void *work(void *argument) {
  struct worker *worker = argument;
  char buffer[64];
  while (atomic_load(worker->left) > 0) {
    const ssize_t got = recv(worker->fd, buffer, sizeof buffer, 0);
    if (got < 0) continue;
    if (got != 32 || !is_filled(buffer, 32, (unsigned char)buffer[0])) atomic_fetch_add(&worker->wrong, 1);
    atomic_fetch_add(&worker->got, 1);
    atomic_fetch_sub(worker->left, 1);
  }
  return NULL;
}

/* Several threads receive from one UDP socket: each datagram whole, and once. */
static void workers(void) {
  struct pair pair = udp_pair(AF_INET);
  atomic_int left = 400;
  struct worker workers[4];
  pthread_t threads[4];
  set_timeout(pair.b, SO_RCVTIMEO, 50);
  for (int i = 0; i < 4; i++) {
    workers[i] = (struct worker){.fd = pair.b, .left = &left};
    must(pthread_create(&threads[i], NULL, work, &workers[i]) == 0, "pthread_create");
  }
  char buffer[32];
  for (int i = 0; i < 400; i++) {
    fill(buffer, sizeof buffer, (unsigned)i);
    must(send(pair.a, buffer, sizeof buffer, 0) == 32, "send");
    /* No more on their way than the receiving socket holds. */
    while (i + 1 - (400 - atomic_load(&left)) > 100) usleep(200);
  }
  int got = 0, wrong = 0;
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    got += atomic_load(&workers[i].got);
    wrong += atomic_load(&workers[i].wrong);
  }
  say("udp four threads receive", "%d, %d wrong", got, wrong);
  close_pair(pair);
}

void cases_waiting(void) {
  timeouts("tcp", tcp_pair(AF_INET));
  timeouts("udp", udp_pair(AF_INET));
  full();
  signals("tcp", tcp_pair(AF_INET));
  signals("udp", udp_pair(AF_INET));
  masks();
  in_handler();
  cancelled("tcp recv is cancelled", receive_forever, tcp_pair(AF_INET));
  cancelled("udp recv is cancelled", receive_forever, udp_pair(AF_INET));
  cancelled("tcp poll is cancelled", poll_forever, tcp_pair(AF_INET));
  cancelled("tcp epoll_wait is cancelled", epoll_forever, tcp_pair(AF_INET));
  workers();
}
