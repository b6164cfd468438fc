/* supervised.c - connections of a program that calls the kernel itself, as the supervisor's test
 * expects them. It prints "end", or what is wrong.
 *
 * Usage: supervised PORT      PORT: a listener on 127.0.0.1
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define CHECK(CONDITION)                                                                          \
  do {                                                                                            \
    if (!(CONDITION)) {                                                                           \
      const int error = errno;                                                                    \
      printf("line %d: %s (%s)\n", __LINE__, #CONDITION, strerror(error));                        \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static struct sockaddr_in v4(const char *ip, int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
  return address;
}

static int opened(int flags) {
  const int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
  CHECK(fd >= 0);
  return fd;
}

static int reach(int fd, const char *ip, int port) {
  const struct sockaddr_in address = v4(ip, port);
  return connect(fd, (const struct sockaddr *)&address, sizeof address);
}

/* The server's greeting comes, and its address is the destination's. */
static void greet(int fd, const char *expected) {
  char text[100] = "";
  CHECK(write(fd, "greet", 5) == 5);
  size_t length = 0;
  ssize_t got;
  while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0) length += (size_t)got;
  CHECK(got == 0 && strcmp(text, expected) == 0);
  close(fd);
}

static int error_of(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && length == sizeof error);
  return error;
}

static void wait_for(int fd) {
  struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
  CHECK(poll(&poll_fd, 1, 20000) == 1);
}

static void blocking(void) {
  int fd = opened(0);
  CHECK(reach(fd, "192.0.2.1", 80) == 0);
  CHECK(reach(fd, "192.0.2.1", 80) == -1 && errno == EISCONN);
  struct sockaddr_in peer;
  socklen_t length = sizeof peer;
  CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && length == sizeof peer);
  CHECK(peer.sin_addr.s_addr == v4("192.0.2.1", 80).sin_addr.s_addr && peer.sin_port == htons(80));
  greet(fd, "hello from 192.0.2.1:80");
  /* A socket whose connection was refused can be used again. */
  fd = opened(0);
  CHECK(reach(fd, "192.0.2.2", 80) == -1 && errno == ECONNREFUSED);
  CHECK(error_of(fd) == 0);
  CHECK(reach(fd, "192.0.2.3", 80) == -1 && errno == ENETUNREACH);
  CHECK(reach(fd, "192.0.2.1", 80) == 0);
  greet(fd, "hello from 192.0.2.1:80");
}

static void nonblocking(void) {
  int fd = opened(SOCK_NONBLOCK);
  CHECK(reach(fd, "192.0.2.1", 80) == -1 && errno == EINPROGRESS);
  CHECK(reach(fd, "192.0.2.1", 80) == -1 && errno == EALREADY);
  wait_for(fd);
  CHECK(error_of(fd) == 0);
  CHECK(fcntl(fd, F_SETFL, 0) == 0);
  greet(fd, "hello from 192.0.2.1:80");
  fd = opened(SOCK_NONBLOCK);
  CHECK(reach(fd, "192.0.2.2", 80) == -1 && errno == EINPROGRESS);
  wait_for(fd);
  CHECK(error_of(fd) == ECONNREFUSED);
  CHECK(error_of(fd) == 0);
  /* connect(2) says it, too. */
  CHECK(reach(fd, "192.0.2.2", 80) == -1 && errno == EINPROGRESS);
  wait_for(fd);
  CHECK(reach(fd, "192.0.2.2", 80) == -1 && errno == ECONNREFUSED);
  /* Given up, for another destination. */
  CHECK(reach(fd, "192.0.2.2", 80) == -1 && errno == EINPROGRESS);
  const struct sockaddr nothing = {.sa_family = AF_UNSPEC};
  CHECK(connect(fd, &nothing, sizeof nothing) == 0);
  CHECK(reach(fd, "192.0.2.1", 80) == -1 && errno == EINPROGRESS);
  wait_for(fd);
  CHECK(error_of(fd) == 0);
  CHECK(fcntl(fd, F_SETFL, 0) == 0);
  greet(fd, "hello from 192.0.2.1:80");
}

static void on_alarm(int number) {
  (void)number;
}

/* A signal interrupts connect(2), which then goes on; a time limit ends it. */
static void interrupted(int flags) {
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0);
  const struct itimerval soon = {.it_value = {.tv_usec = 20000}};
  const int fd = opened(0);
  CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
  const int connected = reach(fd, "192.0.2.1", 80);
  if (flags == 0) {
    CHECK(connected == -1 && errno == EINTR);
    wait_for(fd);
    CHECK(error_of(fd) == 0);
  } else {
    CHECK(connected == 0);
  }
  greet(fd, "hello from 192.0.2.1:80");
}

static void limited(void) {
  const int fd = opened(0);
  const struct timeval limit = {.tv_usec = 20000};
  CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
  CHECK(reach(fd, "192.0.2.1", 80) == -1 && errno == EINPROGRESS);
  wait_for(fd);
  greet(fd, "hello from 192.0.2.1:80");
}

static void *in_thread(void *unused) {
  (void)unused;
  blocking();
  return NULL;
}

/* Whoever comes late learns that the other one has connected. */
static void reach_too(int fd) {
  CHECK(reach(fd, "192.0.2.1", 80) == 0 || errno == EISCONN);
}

static void *in_second(void *fd) {
  usleep(20000);
  reach_too(*(int *)fd);
  return NULL;
}

/* Two threads connect one socket, and both return. */
static void twice(void) {
  int fd = opened(0);
  pthread_t second;
  CHECK(pthread_create(&second, NULL, in_second, &fd) == 0);
  reach_too(fd);
  CHECK(pthread_join(second, NULL) == 0);
  greet(fd, "hello from 192.0.2.1:80");
}

static void v6(void) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
  if (fd < 0) return;
  CHECK(inet_pton(AF_INET6, "2001:db8::1", &address.sin6_addr) == 1);
  CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
  struct sockaddr_in6 peer;
  socklen_t length = sizeof peer;
  CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0);
  CHECK(memcmp(&peer.sin6_addr, &address.sin6_addr, sizeof peer.sin6_addr) == 0);
  greet(fd, "hello from [2001:db8::1]:80");
}

/* What is not TCP to another host is the kernel's affair. */
static void others(int port) {
  int fd = opened(0);
  CHECK(reach(fd, "127.0.0.1", port) == 0);
  struct sockaddr_in peer;
  socklen_t length = sizeof peer;
  CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_port == htons((unsigned short)port));
  close(fd);
  fd = socket(AF_INET, SOCK_DGRAM, 0);
  const int connected = reach(fd, "192.0.2.1", 53);
  CHECK(connected == 0 || errno == ENETUNREACH);
  close(fd);
  fd = socket(AF_UNIX, SOCK_STREAM, 0);
  const struct sockaddr_un nowhere = {.sun_family = AF_UNIX, .sun_path = "/no/such/socket"};
  CHECK(connect(fd, (const struct sockaddr *)&nowhere, sizeof nowhere) == -1 && errno == ENOENT);
  close(fd);
  CHECK(reach(-1, "192.0.2.1", 80) == -1 && errno == EBADF);
  CHECK(reach(1, "192.0.2.1", 80) == -1 && errno == ENOTSOCK);
  fd = opened(0);
  CHECK(connect(fd, (const struct sockaddr *)8, sizeof(struct sockaddr_in)) == -1 && errno == EFAULT);
  CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == -1 && errno == ENOTCONN);
  close(fd);
}

/* Nothing connects by other means. */
static void refused(void) {
  const struct sockaddr_in address = v4("192.0.2.1", 80);
  const int fd = opened(0);
  CHECK(sendto(fd, "x", 1, MSG_FASTOPEN, (const struct sockaddr *)&address, sizeof address) == -1 &&
        errno == EOPNOTSUPP);
  close(fd);
  CHECK(socket(AF_INET, SOCK_STREAM, 262 /* IPPROTO_MPTCP */) == -1 && errno == EPROTONOSUPPORT);
  char parameters[120] = "";
  CHECK(syscall(SYS_io_uring_setup, 1, parameters) == -1 && errno == EPERM);
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  setvbuf(stdout, NULL, _IONBF, 0);
  blocking();
  nonblocking();
  interrupted(SA_RESTART);
  interrupted(0);
  limited();
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  twice();
  v6();
  others(atoi(arguments[1]));
  refused();
  puts("end");
  return 0;
}
