/*
 * calls.c - the conformance list: cases of socket calls that must end the same natively, taken, and
 * not taken.
 *
 * Usage: calls        prints a line for each case; who runs it compares the output with that of
 * another run
 */
#include "calls.h"

static int cases;

void say(const char *name, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("%3d %s: ", ++cases, name);
  vprintf(format, arguments);
  putchar('\n');
  fflush(stdout);
  va_end(arguments);
}

const char *error_name(int error) {
  return error == 0 ? "no error" : strerrorname_np(error);
}

void say_result(const char *name, long result) {
  if (result >= 0)
    say(name, "%ld", result);
  else
    say(name, "%s", error_name(errno));
}

void must(bool condition, const char *what) {
  if (condition) return;
  printf("cannot go on: %s: %s\n", what, error_name(errno));
  exit(1);
}

struct sockaddr_storage name_of(int fd, socklen_t *length) {
  struct sockaddr_storage name = {0};
  *length = sizeof name;
  must(getsockname(fd, (struct sockaddr *)&name, length) == 0, "getsockname");
  return name;
}

int bound_socket(int family, int type) {
  const int fd = socket(family, type, 0);
  must(fd >= 0, "socket");
  const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  const struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (family == AF_INET6)
    must(bind(fd, (const struct sockaddr *)&six, sizeof six) == 0, "bind");
  else
    must(bind(fd, (const struct sockaddr *)&four, sizeof four) == 0, "bind");
  if ((type & SOCK_STREAM) != 0) must(listen(fd, 16) == 0, "listen");
  return fd;
}

struct pair tcp_pair(int family) {
  const int listener = bound_socket(family, SOCK_STREAM);
  socklen_t length;
  const struct sockaddr_storage name = name_of(listener, &length);
  struct pair pair = {.a = socket(family, SOCK_STREAM, 0)};
  must(connect(pair.a, (const struct sockaddr *)&name, length) == 0, "connect");
  pair.b = accept(listener, NULL, NULL);
  must(pair.b >= 0, "accept");
  close(listener);
  return pair;
}

struct pair udp_pair(int family) {
  const struct pair pair = {.a = bound_socket(family, SOCK_DGRAM), .b = bound_socket(family, SOCK_DGRAM)};
  socklen_t length;
  struct sockaddr_storage name = name_of(pair.b, &length);
  must(connect(pair.a, (const struct sockaddr *)&name, length) == 0, "connect");
  name = name_of(pair.a, &length);
  must(connect(pair.b, (const struct sockaddr *)&name, length) == 0, "connect");
  return pair;
}

void close_pair(struct pair pair) {
  close(pair.a);
  close(pair.b);
}

void set_nonblocking(int fd) {
  must(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0, "O_NONBLOCK");
}

void set_timeout(int fd, int option, int ms) {
  const struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  must(setsockopt(fd, SOL_SOCKET, option, &time, sizeof time) == 0, "time-out");
}

bool wait_readable(int fd) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, PATIENCE_MS) == 1;
}

int readable(int fd) {
  int octets = -1;
  return ioctl(fd, FIONREAD, &octets) == 0 ? octets : -1;
}

void fill(char *buffer, size_t length, unsigned seed) {
  for (size_t i = 0; i < length; i++) buffer[i] = (char)((i * 31 + (i >> 8) * 7 + seed) & 0xff);
}

bool is_filled(const char *buffer, size_t length, unsigned seed) {
  for (size_t i = 0; i < length; i++) {
    if (buffer[i] != (char)((i * 31 + (i >> 8) * 7 + seed) & 0xff)) return false;
  }
  return true;
}

bool send_all(int fd, const char *buffer, size_t length) {
  while (length > 0) {
    const ssize_t sent = send(fd, buffer, length, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    buffer += sent;
    length -= (size_t)sent;
  }
  return true;
}

size_t recv_all(int fd, char *buffer, size_t length) {
  size_t done = 0;
  while (done < length) {
    const ssize_t got = recv(fd, buffer + done, length - done, 0);
    if (got <= 0) break;
    done += (size_t)got;
  }
  return done;
}

static atomic_int interrupted;
static timer_t timer;

static void on_interrupt(int number) {
  (void)number;
  atomic_fetch_add(&interrupted, 1);
}

/* Rings again and again: the first may come before the call. */
void interrupt_after(int number, bool restart, int ms) {
  struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = restart ? SA_RESTART : 0};
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  const struct itimerspec every = {.it_value = time, .it_interval = time};
  atomic_store(&interrupted, 0);
  must(sigaction(number, &action, NULL) == 0, "sigaction");
  must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  must(timer_settime(timer, 0, &every, NULL) == 0, "timer_settime");
}

int interrupts(void) {
  return atomic_load(&interrupted);
}

void stop_interrupting(void) {
  timer_delete(timer);
}

int main(int count, char **arguments) {
  cases_matrix();
  cases_stream();
  cases_datagram();
  cases_poll();
  cases_epoll();
  cases_waiting();
  cases_process();
  cases_errors();
  if (count > 1 && strcmp(arguments[1], "inherited") == 0) cases_inherited();
  printf("%d cases\n", cases);
  return 0;
}
