/*
 * through.c - what a program sees of its connections: prints the same natively and under `haul run
 * --gateway`.
 *
 * Usage: through serve PORT           sends back what it gets, on all addresses
 *        through HOST PORT CLOSED     HOST serves at PORT, and refuses at CLOSED
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000, BULK = 4 << 20 };

static struct sockaddr_storage open_port, closed_port;
static socklen_t address_length;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static const char *name_of(int error) {
  switch (error) {
    case 0: return "no error";
    case EINPROGRESS: return "EINPROGRESS";
    case EALREADY: return "EALREADY";
    case EISCONN: return "EISCONN";
    case ECONNREFUSED: return "ECONNREFUSED";
    case ENOTCONN: return "ENOTCONN";
    default: return strerror(error);
  }
}

static int result_of(int result) {
  return result < 0 ? errno : 0;
}

static int new_socket(int flags) {
  const int fd = socket(open_port.ss_family, SOCK_STREAM | flags, 0);
  if (fd < 0) fail("socket");
  return fd;
}

static int to(int fd, const struct sockaddr_storage *address) {
  return result_of(connect(fd, (const struct sockaddr *)address, address_length));
}

static int pending_error(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) fail("getsockopt");
  return error;
}

/* Waits for an event; of what came, the part that programs ask about. */
static int events_of(int fd, short wanted) {
  struct pollfd entry = {.fd = fd, .events = wanted};
  if (poll(&entry, 1, PATIENCE_MS) != 1) return 0;
  return entry.revents & (POLLOUT | POLLERR | POLLHUP);
}

/* Whether it is connected to where it should be. */
static bool is_at(int fd, const struct sockaddr_storage *expected) {
  struct sockaddr_storage peer = {0};
  socklen_t length = sizeof peer;
  if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0) return false;
  return length == address_length && memcmp(&peer, expected, length) == 0;
}

/* Whether what is sent comes back, and the end of it behind it. */
static bool echoes(int fd, size_t count) {
  unsigned char *sent = malloc(count), *got = malloc(count + 1);
  if (sent == NULL || got == NULL) fail("malloc");
  for (size_t i = 0; i < count; i++) sent[i] = (unsigned char)(i * 2654435761u >> 13);
  const pid_t writer = fork();
  if (writer < 0) fail("fork");
  if (writer == 0) {
    for (size_t at = 0; at < count;) {
      const ssize_t done = send(fd, sent + at, count - at, MSG_NOSIGNAL);
      if (done < 0) _exit(1);
      at += (size_t)done;
    }
    _exit(shutdown(fd, SHUT_WR) != 0);
  }
  size_t at = 0;
  ssize_t done;
  while (at <= count && (done = recv(fd, got + at, count + 1 - at, 0)) > 0) at += (size_t)done;
  int status = -1;
  waitpid(writer, &status, 0);
  const bool same = done == 0 && at == count && memcmp(sent, got, count) == 0 && status == 0;
  free(sent);
  free(got);
  return same;
}

static void blocking(int fd) {
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0) fail("fcntl");
}

static void a_connect_that_waits(void) {
  const int fd = new_socket(0);
  printf("connect: %s\n", name_of(to(fd, &open_port)));
  printf("  flags unchanged: %d\n", (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
  printf("  peer: %d\n", is_at(fd, &open_port));
  printf("  again: %s\n", name_of(to(fd, &open_port)));
  printf("  echo: %d\n", echoes(fd, BULK));
  close(fd);
}

static void a_connect_that_is_refused(void) {
  const int fd = new_socket(0);
  printf("refused: %s\n", name_of(to(fd, &closed_port)));
  printf("  pending: %s\n", name_of(pending_error(fd)));
  printf("  peer: %d\n", is_at(fd, &closed_port));
  printf("  then elsewhere: %s\n", name_of(to(fd, &open_port)));
  printf("  echo: %d\n", echoes(fd, 1000));
  close(fd);
}

static void a_connect_that_does_not_wait(void) {
  const int fd = new_socket(SOCK_NONBLOCK);
  printf("without waiting: %s\n", name_of(to(fd, &open_port)));
  printf("  events: %#x\n", (unsigned)events_of(fd, POLLOUT));
  printf("  pending: %s\n", name_of(pending_error(fd)));
  printf("  peer: %d\n", is_at(fd, &open_port));
  blocking(fd);
  printf("  echo: %d\n", echoes(fd, BULK));
  close(fd);
}

static void a_refusal_without_waiting(void) {
  const int fd = new_socket(SOCK_NONBLOCK);
  printf("refused without waiting: %s\n", name_of(to(fd, &closed_port)));
  printf("  events: %#x\n", (unsigned)events_of(fd, POLLOUT));
  printf("  pending: %s\n", name_of(pending_error(fd)));
  printf("  pending again: %s\n", name_of(pending_error(fd)));
  close(fd);
  /* Others ask by connecting again. */
  const int other = new_socket(SOCK_NONBLOCK);
  printf("  another: %s\n", name_of(to(other, &closed_port)));
  events_of(other, POLLOUT);
  printf("  asked by connect: %s\n", name_of(to(other, &closed_port)));
  close(other);
}

static void select_and_epoll(void) {
  const int fd = new_socket(SOCK_NONBLOCK);
  to(fd, &open_port);
  fd_set writable;
  FD_ZERO(&writable);
  FD_SET(fd, &writable);
  struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
  printf("select: %d\n", select(fd + 1, NULL, &writable, NULL, &patience));
  printf("  pending: %s\n", name_of(pending_error(fd)));
  close(fd);
  const int poller = epoll_create1(0);
  for (int refused = 0; refused < 2; refused++) {
    const int edge = new_socket(SOCK_NONBLOCK);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLIN | EPOLLET, .data.u32 = 7};
    to(edge, refused ? &closed_port : &open_port);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, edge, &event) != 0) fail("epoll_ctl");
    const int count = epoll_wait(poller, &event, 1, PATIENCE_MS);
    printf("epoll: %d, events %#x\n", count, event.events & (EPOLLOUT | EPOLLERR | EPOLLHUP));
    printf("  pending: %s\n", name_of(pending_error(edge)));
    if (!refused) {
      printf("  nothing more: %d\n", epoll_wait(poller, &event, 1, 50));
      if (send(edge, "x", 1, MSG_NOSIGNAL) != 1) fail("send");
      char octet = 0;
      while (recv(edge, &octet, 1, 0) < 0 && errno == EAGAIN) {
        if (epoll_wait(poller, &event, 1, PATIENCE_MS) != 1) fail("epoll_wait");
      }
      printf("  octet: %c\n", octet);
    }
    close(edge);
  }
  close(poller);
}

static void many_at_once(void) {
  enum { COUNT = 50 };
  int fds[COUNT], connected = 0, echoed = 0;
  for (int i = 0; i < COUNT; i++) {
    fds[i] = new_socket(SOCK_NONBLOCK);
    to(fds[i], &open_port);
  }
  for (int i = 0; i < COUNT; i++) {
    connected += events_of(fds[i], POLLOUT) == POLLOUT && pending_error(fds[i]) == 0;
    blocking(fds[i]);
    echoed += echoes(fds[i], 1000 + (size_t)i);
    close(fds[i]);
  }
  printf("many: %d connected, %d echo\n", connected, echoed);
}

static void a_copy_and_a_child(void) {
  const int fd = new_socket(0);
  to(fd, &open_port);
  const int copy = dup(fd);
  close(fd);
  printf("copy: peer %d\n", is_at(copy, &open_port));
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) _exit(echoes(copy, 5000) ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  printf("  child: %d\n", status);
  close(copy);
}

static void one_that_is_given_up(void) {
  const int fd = new_socket(SOCK_NONBLOCK);
  to(fd, &open_port);
  close(fd);
  const int other = new_socket(0);
  printf("after one that was given up: %s\n", name_of(to(other, &open_port)));
  close(other);
}

static void a_name_of_its_own(void) {
  struct sockaddr_storage any = {.ss_family = open_port.ss_family};
  const int fd = new_socket(0);
  printf("bound: %s\n", name_of(result_of(bind(fd, (struct sockaddr *)&any, address_length))));
  printf("  connect: %s\n", name_of(to(fd, &open_port)));
  printf("  echo: %d\n", echoes(fd, 100));
  close(fd);
}

/* A destination on this host: no gateway leads there. */
static void close_by(void) {
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof here;
  const int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 1) != 0) fail("listen");
  if (getsockname(listener, (struct sockaddr *)&here, &length) != 0) fail("getsockname");
  printf("on this host: %s\n", name_of(result_of(connect(fd, (struct sockaddr *)&here, sizeof here))));
  const int accepted = accept(listener, NULL, NULL);
  char octet = 0;
  printf("  octet: %d\n", send(fd, "x", 1, 0) == 1 && recv(accepted, &octet, 1, 0) == 1 && octet == 'x');
  close(accepted);
  close(fd);
  close(listener);
}

static void look_up(const char *host, const char *port, struct sockaddr_storage *address) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
  struct addrinfo *found;
  if (getaddrinfo(host, port, &hints, &found) != 0) fail(host);
  memcpy(address, found->ai_addr, found->ai_addrlen);
  address_length = found->ai_addrlen;
  freeaddrinfo(found);
}

static void *echo(void *argument) {
  const int fd = (int)(intptr_t)argument;
  static _Thread_local char octets[65536];
  ssize_t count;
  while ((count = recv(fd, octets, sizeof octets, 0)) > 0) {
    for (ssize_t at = 0, done; at < count; at += done) {
      done = send(fd, octets + at, (size_t)(count - at), MSG_NOSIGNAL);
      if (done < 0) {
        close(fd);
        return NULL;
      }
    }
  }
  close(fd);
  return NULL;
}

static _Noreturn void serve(const char *port) {
  const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
  const int listener = socket(AF_INET6, SOCK_STREAM, 0), yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (const struct sockaddr *)&any, sizeof any) != 0 || listen(listener, 128) != 0) fail("listen");
  for (;;) {
    pthread_t thread;
    const int fd = accept(listener, NULL, NULL);
    if (fd >= 0 && pthread_create(&thread, NULL, echo, (void *)(intptr_t)fd) == 0) pthread_detach(thread);
  }
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "serve") == 0) serve(argv[2]);
  if (argc != 4) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  look_up(argv[1], argv[2], &open_port);
  look_up(argv[1], argv[3], &closed_port);
  a_connect_that_waits();
  a_connect_that_is_refused();
  a_connect_that_does_not_wait();
  a_refusal_without_waiting();
  select_and_epoll();
  many_at_once();
  a_copy_and_a_child();
  one_that_is_given_up();
  a_name_of_its_own();
  close_by();
  puts("end");
  return 0;
}
