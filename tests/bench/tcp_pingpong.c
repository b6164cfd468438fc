/* Half round trip of plain TCP: what small messages of an RDMA transport over TCP are compared
 * with.
 *
 *   tcp_pingpong serve ADDRESS PORT block|spin
 *   tcp_pingpong ADDRESS PORT block|spin SIZE SECONDS
 *
 * "block" waits in recv(2), "spin" asks again until something is there. */
#include "common.h"

enum { SAMPLES_MAX = 1 << 22 };

static int flags_of(const char *word) {
  if (!strcmp(word, "block")) return 0;
  if (!strcmp(word, "spin")) return MSG_DONTWAIT;
  die(word, "write block or spin");
  return 0;
}

static int serve(char **argument) {
  int flags = flags_of(argument[2]), fd = tcp_open(argument[0], argument[1], 1);
  uint32_t size;
  if (!tcp_recv_all(fd, &size, sizeof size, 0) || size == 0 || size > 1 << 24) die("size", "out of range");
  char *message = malloc(size);
  double cpu = cpu_s();
  for (;;) {
    if (!tcp_recv_all(fd, message, size, flags)) return 0;
    if (message[0] == 'e') break;
    tcp_send_all(fd, message, size);
  }
  cpu = cpu_s() - cpu;
  tcp_send_all(fd, &cpu, sizeof cpu);
  return 0;
}

static int ask(char **argument) {
  int flags = flags_of(argument[2]), fd = tcp_open(argument[0], argument[1], 0);
  uint32_t size = (uint32_t)strtoul(argument[3], NULL, 10);
  double seconds = strtod(argument[4], NULL), *trips = malloc(SAMPLES_MAX * sizeof *trips), theirs = 0;
  size_t n = 0, warm_up = 100;
  char *message = calloc(1, size ? size : 1);
  tcp_send_all(fd, &size, sizeof size);
  for (; warm_up > 0; warm_up--) {
    tcp_send_all(fd, message, size);
    tcp_recv_all(fd, message, size, flags);
  }
  double cpu = cpu_s(), start = now_s(), last = start;
  while (n < SAMPLES_MAX && last - start < seconds) {
    tcp_send_all(fd, message, size);
    if (!tcp_recv_all(fd, message, size, flags)) die("peer", "gone");
    double t = now_s();
    trips[n++] = t - last;
    last = t;
  }
  cpu = cpu_s() - cpu;
  message[0] = 'e';
  tcp_send_all(fd, message, size);
  tcp_recv_all(fd, &theirs, sizeof theirs, 0);
  print_latency(trips, n, cpu, theirs);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 5 && !strcmp(argv[1], "serve")) return serve(argv + 2);
  if (argc == 6) return ask(argv + 1);
  die("usage", "tcp_pingpong serve ADDRESS PORT block|spin | tcp_pingpong ADDRESS PORT block|spin SIZE SECONDS");
}
