/* What the reference programs share: time, processor time, figures, and a plain TCP connection. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Processor time of this process, seconds. */
static double cpu_s(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Prints half of each round trip (seconds), in microseconds; nearest rank, as haul does. */
static void print_latency(double *trips, size_t n, double client_cpu, double server_cpu) {
  double sum = 0;
  if (n == 0) die("latency", "no samples");
  qsort(trips, n, sizeof *trips, by_value);
  for (size_t i = 0; i < n; i++) sum += trips[i];
#define RANK(per_mille) (trips[((n * (per_mille) + 999) / 1000 ? (n * (per_mille) + 999) / 1000 : 1) - 1] * 5e5)
  printf("iterations=%zu min_us=%.3f typical_us=%.3f average_us=%.3f p99_us=%.3f p999_us=%.3f max_us=%.3f "
         "client_cpu_s=%.6f server_cpu_s=%.6f\n",
         n, RANK(0), RANK(500), sum / (double)n * 5e5, RANK(990), RANK(999), RANK(1000), client_cpu, server_cpu);
#undef RANK
}

static int tcp_open(const char *host, const char *port, int listening) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listening ? AI_PASSIVE : 0}, *list;
  int error = getaddrinfo(host, port, &hints, &list), one = 1;
  if (error) die(host, gai_strerror(error));
  int fd = socket(list->ai_family, SOCK_STREAM, 0);
  if (fd < 0) die("socket", strerror(errno));
  if (listening) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, list->ai_addr, list->ai_addrlen) || listen(fd, 1)) die("listen", strerror(errno));
    int peer = accept(fd, NULL, NULL);
    if (peer < 0) die("accept", strerror(errno));
    close(fd);
    fd = peer;
  } else if (connect(fd, list->ai_addr, list->ai_addrlen)) {
    die("connect", strerror(errno));
  }
  freeaddrinfo(list);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

/* All of it, waiting in the kernel, or busily where the flags say MSG_DONTWAIT; 0 at the end of the
 * stream. */
static int tcp_recv_all(int fd, void *to, size_t len, int flags) {
  char *at = to;
  while (len > 0) {
    ssize_t n = recv(fd, at, len, flags);
    if (n == 0) return 0;
    if (n < 0 && errno != EAGAIN && errno != EINTR) die("recv", strerror(errno));
    if (n > 0) at += n, len -= (size_t)n;
  }
  return 1;
}

static void tcp_send_all(int fd, const void *from, size_t len) {
  const char *at = from;
  while (len > 0) {
    ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) die("send", strerror(errno));
    if (n > 0) at += n, len -= (size_t)n;
  }
}

#endif
