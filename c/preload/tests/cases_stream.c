/* cases_stream.c - TCP: amounts, parts, ends, errors. */
#include "calls.h"

#include <wchar.h>

struct transfer {
  int fd;
  size_t length;
  unsigned seed;
};

static void *send_thread(void *argument) {
  const struct transfer *transfer = argument;
  char *buffer = malloc(transfer->length + 1);
  fill(buffer, transfer->length, transfer->seed);
  if (!send_all(transfer->fd, buffer, transfer->length)) printf("sending failed: %s\n", error_name(errno));
  free(buffer);
  return NULL;
}

static void amounts(void) {
  static const size_t lengths[] = {1, 3, 4, 1448, 4999, 5000, 5001, 65535, 65536, 65537, 300000, 3000000};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    struct pair pair = tcp_pair(AF_INET);
    struct transfer transfer = {pair.a, lengths[i], (unsigned)i};
    pthread_t thread;
    must(pthread_create(&thread, NULL, send_thread, &transfer) == 0, "pthread_create");
    char *buffer = malloc(lengths[i]);
    const size_t got = recv_all(pair.b, buffer, lengths[i]);
    pthread_join(thread, NULL);
    char name[40];
    snprintf(name, sizeof name, "tcp of %zu octets", lengths[i]);
    say(name, "%zu %s", got, is_filled(buffer, got, (unsigned)i) ? "equal" : "different");
    free(buffer);
    close_pair(pair);
  }
}

/* Both directions at once, each end one thread that polls: more than all buffers hold. */
static void both_ways(void) {
  const size_t length = 2000000;
  struct pair pair = tcp_pair(AF_INET);
  const int fds[2] = {pair.a, pair.b};
  char *out = malloc(length), *in[2] = {malloc(length), malloc(length)};
  size_t sent[2] = {0}, got[2] = {0};
  fill(out, length, 5);
  set_nonblocking(pair.a);
  set_nonblocking(pair.b);
  bool failed = false;
  while (!failed && (got[0] < length || got[1] < length)) {
    struct pollfd ready[2];
    for (int i = 0; i < 2; i++)
      ready[i] = (struct pollfd){.fd = fds[i], .events = (short)(POLLIN | (sent[i] < length ? POLLOUT : 0))};
    if (poll(ready, 2, PATIENCE_MS) <= 0) break;
    for (int i = 0; i < 2; i++) {
      if ((ready[i].revents & POLLOUT) != 0) {
        const ssize_t n = send(fds[i], out + sent[i], length - sent[i], MSG_NOSIGNAL);
        if (n > 0) sent[i] += (size_t)n;
        failed |= n < 0 && errno != EAGAIN;
      }
      if ((ready[i].revents & POLLIN) != 0) {
        const ssize_t n = recv(fds[i], in[i] + got[i], length - got[i] < 7000 ? length - got[i] : 7000, 0);
        if (n > 0) got[i] += (size_t)n;
        failed |= n == 0 || (n < 0 && errno != EAGAIN);
      }
    }
  }
  say("tcp both ways at once", "%zu %zu %s", got[0], got[1],
      is_filled(in[0], got[0], 5) && is_filled(in[1], got[1], 5) ? "equal" : "different");
  free(out), free(in[0]), free(in[1]);
  close_pair(pair);
}

static void flags(void) {
  struct pair pair = tcp_pair(AF_INET);
  char buffer[64] = {0};
  say_result("tcp MSG_DONTWAIT of nothing", recv(pair.b, buffer, sizeof buffer, MSG_DONTWAIT));
  must(send(pair.a, "abcdefghij", 10, 0) == 10, "send");
  must(wait_readable(pair.b), "poll");
  say_result("tcp MSG_PEEK", recv(pair.b, buffer, 4, MSG_PEEK));
  say("tcp MSG_PEEK shows", "%.4s", buffer);
  say_result("tcp MSG_PEEK again", recv(pair.b, buffer, sizeof buffer, MSG_PEEK));
  say_result("tcp part", recv(pair.b, buffer, 3, 0));
  say("tcp part is", "%.3s", buffer);
  say_result("tcp MSG_PEEK of the rest", recv(pair.b, buffer, sizeof buffer, MSG_PEEK | MSG_DONTWAIT));
  say_result("tcp MSG_TRUNC throws away", recv(pair.b, NULL, 2, MSG_TRUNC));
  say_result("tcp rest", recv(pair.b, buffer, sizeof buffer, MSG_DONTWAIT));
  say("tcp rest is", "%.5s", buffer);
  say_result("tcp nothing is left", recv(pair.b, buffer, sizeof buffer, MSG_DONTWAIT));
  say_result("tcp receive of no length", recv(pair.b, buffer, 0, MSG_DONTWAIT));
  say_result("tcp send of no length", send(pair.a, buffer, 0, 0));
  struct sockaddr_storage from;
  socklen_t length = sizeof from;
  must(send(pair.a, "x", 1, MSG_MORE) == 1, "send");
  must(send(pair.a, "y", 1, 0) == 1, "send");
  say_result("tcp recvfrom with MSG_WAITALL",
             recvfrom(pair.b, buffer, 2, MSG_WAITALL, (struct sockaddr *)&from, &length));
  say("tcp recvfrom gives no address", "%u", length);
  struct mmsghdr messages[2] = {0};
  struct iovec vectors[2] = {{"one", 3}, {"three", 5}};
  for (int i = 0; i < 2; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
  say_result("tcp sendmmsg of two", sendmmsg(pair.a, messages, 2, 0));
  say("tcp sendmmsg counts", "%u %u", messages[0].msg_len, messages[1].msg_len);
  say("tcp sendmmsg arrives", "%zu %.8s", recv_all(pair.b, buffer, 8), buffer);
  close_pair(pair);
}

/* Flags that mean little to TCP, and control data that is wrong: what comes after is in order,
 * whatever they did. */
static void odd_flags(void) {
  static const struct {
    const char *name;
    int flags;
  } cases[] = {
      {"MSG_ZEROCOPY", MSG_ZEROCOPY}, {"MSG_ZEROCOPY and MSG_MORE", MSG_ZEROCOPY | MSG_MORE},
      {"MSG_EOR", MSG_EOR},           {"MSG_EOR and MSG_MORE", MSG_EOR | MSG_MORE},
      {"MSG_CONFIRM", MSG_CONFIRM},   {"MSG_DONTROUTE", MSG_DONTROUTE},
      {"MSG_FASTOPEN", MSG_FASTOPEN}, {"MSG_PEEK", MSG_PEEK},
      {"MSG_WAITALL", MSG_WAITALL},   {"MSG_TRUNC", MSG_TRUNC},
      {"all but some bits", 0x10 | 0x20 | 0x1000 | 0x10000},
  };
  struct pair pair = tcp_pair(AF_INET);
  char name[80], buffer[16];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    snprintf(name, sizeof name, "tcp send with %s", cases[i].name);
    const ssize_t sent = send(pair.a, "flag", 4, cases[i].flags);
    say_result(name, sent);
    must(send(pair.a, "after", 5, 0) == 5, "send");
    const size_t expected = sent > 0 ? 9 : 5;
    snprintf(name, sizeof name, "tcp after %s", cases[i].name);
    memset(buffer, 0, sizeof buffer);
    say(name, "%zu %s", recv_all(pair.b, buffer, expected), buffer);
  }
  char control[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec vector = {"no", 2};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = 12345;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  say_result("tcp sendmsg with wrong control data", sendmsg(pair.a, &message, 0));
  must(send(pair.a, "after", 5, 0) == 5, "send");
  memset(buffer, 0, sizeof buffer);
  say("tcp after wrong control data", "%zu %s", recv_all(pair.b, buffer, 5), buffer);
  close_pair(pair);
}

/* What a send that does not wait says it has sent arrives, though nothing is sent after it: before
 * an end, and before none. */
static void left_half(void) {
  for (int ends = 0; ends < 2; ends++) {
    struct pair pair = tcp_pair(AF_INET);
    const size_t length = 100000;
    char *buffer = malloc(length);
    fill(buffer, length, 3);
    set_nonblocking(pair.a);
    size_t sent = 0, got = 0;
    bool equal = true;
    ssize_t some;
    while ((some = send(pair.a, buffer + sent % length, length - sent % length, 0)) > 0) sent += (size_t)some;
    if (ends) close(pair.a);
    char *expected = malloc(length), *in = malloc(length);
    fill(expected, length, 3);
    set_timeout(pair.b, SO_RCVTIMEO, PATIENCE_MS / 2);
    while (got < sent) {
      some = recv(pair.b, in, length - got % length, 0);
      if (some <= 0) break;
      equal = equal && memcmp(in, expected + got % length, (size_t)some) == 0;
      got += (size_t)some;
    }
    say(ends ? "tcp half a message, and the end" : "tcp half a message, and nothing", "%s %s",
        got == sent ? "all" : "less", equal ? "equal" : "different");
    if (ends) say_result("tcp end after half a message", recv(pair.b, in, 1, 0));
    free(buffer), free(expected), free(in);
    if (!ends) close(pair.a);
    close(pair.b);
  }
}

/* Many small sends, and a reader that takes less than it had room for as the sign that there is no
 * more, as epoll(7) says. */
static void small_parts(void) {
  struct pair pair = tcp_pair(AF_INET);
  const int epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN | EPOLLET};
  static char buffer[65536];
  size_t got = 0;
  for (int i = 0; i < 3000; i++) must(send(pair.a, "x", 1, 0) == 1, "send");
  must(wait_readable(pair.b), "poll");
  epoll_ctl(epoll, EPOLL_CTL_ADD, pair.b, &event);
  while (got < 3000 && epoll_wait(epoll, &event, 1, PATIENCE_MS / 10) == 1) {
    ssize_t some;
    do {
      some = recv(pair.b, buffer, sizeof buffer, MSG_DONTWAIT);
      if (some > 0) got += (size_t)some;
    } while (some == (ssize_t)sizeof buffer);
  }
  say("tcp three thousand small sends", "%zu", got);
  close(epoll);
  close_pair(pair);
}

static void wait_all(void) {
  struct pair pair = tcp_pair(AF_INET);
  struct transfer transfer = {pair.a, 200000, 9};
  char *buffer = malloc(200000);
  pthread_t thread;
  must(pthread_create(&thread, NULL, send_thread, &transfer) == 0, "pthread_create");
  struct iovec vectors[3] = {{buffer, 1}, {buffer + 1, 99999}, {buffer + 100000, 100000}};
  struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 3};
  const ssize_t got = recvmsg(pair.b, &message, MSG_WAITALL);
  pthread_join(thread, NULL);
  say("tcp MSG_WAITALL over three buffers", "%zd %s", got, is_filled(buffer, 200000, 9) ? "equal" : "different");
  say("tcp MSG_WAITALL leaves the vectors", "%zu %zu %zu", vectors[0].iov_len, vectors[1].iov_len, vectors[2].iov_len);
  must(send(pair.a, "end", 3, 0) == 3, "send");
  close(pair.a);
  say_result("tcp MSG_WAITALL to the end", recv(pair.b, buffer, 200000, MSG_WAITALL));
  say_result("tcp end", recv(pair.b, buffer, 200000, 0));
  free(buffer);
  close(pair.b);
}

static void half_close(void) {
  struct pair pair = tcp_pair(AF_INET);
  char buffer[64];
  must(send(pair.a, "request", 7, 0) == 7, "send");
  say_result("tcp shutdown for writing", shutdown(pair.a, SHUT_WR));
  say("tcp request after half close", "%zu", recv_all(pair.b, buffer, sizeof buffer));
  must(send(pair.b, "answer", 6, 0) == 6, "send");
  say_result("tcp answer after half close", recv(pair.a, buffer, sizeof buffer, MSG_WAITALL & 0));
  say_result("tcp send after shutdown", send(pair.a, "x", 1, MSG_NOSIGNAL));
  say_result("tcp shutdown for reading", shutdown(pair.a, SHUT_RD));
  say_result("tcp receive after shutdown", recv(pair.a, buffer, sizeof buffer, 0));
  say_result("tcp shutdown of both", shutdown(pair.b, SHUT_RDWR));
  say_result("tcp shutdown of nonsense", shutdown(pair.b, 77));
  close_pair(pair);
}

static void on_pipe(int number) {
  static const char line[] = "    SIGPIPE came\n";
  (void)number;
  if (write(1, line, sizeof line - 1) < 0) _exit(1);
}

static void broken(void) {
  struct pair pair = tcp_pair(AF_INET);
  char buffer[64];
  struct sigaction action = {.sa_handler = on_pipe};
  must(sigaction(SIGPIPE, &action, NULL) == 0, "sigaction");
  shutdown(pair.a, SHUT_WR);
  say_result("tcp send into a closed direction", send(pair.a, "x", 1, 0));
  say_result("tcp write into a closed direction", write(pair.a, "x", 1));
  signal(SIGPIPE, SIG_IGN);
  close_pair(pair);

  pair = tcp_pair(AF_INET);
  const struct linger hard = {.l_onoff = 1};
  must(setsockopt(pair.a, SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0, "SO_LINGER");
  close(pair.a);
  must(wait_readable(pair.b), "poll");
  say_result("tcp receive after a reset", recv(pair.b, buffer, sizeof buffer, 0));
  say_result("tcp receive once more", recv(pair.b, buffer, sizeof buffer, 0));
  say_result("tcp send after a reset", send(pair.b, "x", 1, MSG_NOSIGNAL));
  close(pair.b);

  pair = tcp_pair(AF_INET);
  must(send(pair.a, "last words", 10, 0) == 10, "send");
  close(pair.a);
  say("tcp what was sent before close", "%zu", recv_all(pair.b, buffer, sizeof buffer));
  close(pair.b);
}

static void connecting(void) {
  const int listener = bound_socket(AF_INET, SOCK_STREAM);
  socklen_t length;
  struct sockaddr_storage name = name_of(listener, &length), other;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int begun = connect(fd, (struct sockaddr *)&name, length);
  say("tcp non-blocking connect", "%s", begun == 0 ? "begun" : errno == EINPROGRESS ? "begun" : error_name(errno));
  struct pollfd one = {.fd = fd, .events = POLLOUT};
  say_result("tcp connect is polled", poll(&one, 1, PATIENCE_MS));
  int error = -1;
  length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  say("tcp SO_ERROR after connect", "%s", error_name(error));
  say("tcp flags stay", "%d %d", fcntl(fd, F_GETFL) & O_NONBLOCK ? 1 : 0, fcntl(fd, F_GETFD));
  length = sizeof other;
  const int there = accept4(listener, (struct sockaddr *)&other, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  say("tcp accept4", "%u %d %d", length, fcntl(there, F_GETFL) & O_NONBLOCK ? 1 : 0, fcntl(there, F_GETFD));
  const struct sockaddr_storage mine = name_of(fd, &length);
  say("tcp accept gives the peer's name", "%s", memcmp(&mine, &other, length) == 0 ? "equal" : "different");
  length = sizeof other;
  getpeername(fd, (struct sockaddr *)&other, &length);
  say("tcp getpeername", "%s", memcmp(&name, &other, length) == 0 ? "equal" : "different");
  const int again = connect(fd, (struct sockaddr *)&name, sizeof(struct sockaddr_in));
  say("tcp connect again", "%s", again == 0 ? "0" : error_name(errno));
  close(fd), close(there), close(listener);
  const int refused = socket(AF_INET, SOCK_STREAM, 0);
  say_result("tcp connect refused", connect(refused, (struct sockaddr *)&name, sizeof(struct sockaddr_in)));
  say_result("tcp connect with a short address", connect(refused, (struct sockaddr *)&name, 3));
  char buffer[8];
  say_result("tcp send unconnected", send(refused, "x", 1, MSG_NOSIGNAL));
  say_result("tcp receive unconnected", recv(refused, buffer, sizeof buffer, 0));
  close(refused);
}

/* A client that binds its own port first. */
static void named_client(void) {
  const int listener = bound_socket(AF_INET, SOCK_STREAM), fd = socket(AF_INET, SOCK_STREAM, 0);
  const struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  must(bind(fd, (const struct sockaddr *)&any, sizeof any) == 0, "bind");
  socklen_t length;
  const struct sockaddr_storage before = name_of(fd, &length), name = name_of(listener, &length);
  say_result("tcp connect of a bound socket", connect(fd, (const struct sockaddr *)&name, length));
  const struct sockaddr_storage after = name_of(fd, &length);
  say("tcp keeps its name", "%s", memcmp(&before, &after, length) == 0 ? "equal" : "different");
  const int there = accept(listener, NULL, NULL);
  char buffer[8];
  must(send(there, "hello", 5, 0) == 5, "send");
  say("tcp bound client receives", "%zu", recv_all(fd, buffer, 5));
  close(fd), close(there), close(listener);
}

static void files(void) {
  struct pair pair = tcp_pair(AF_INET);
  FILE *file = tmpfile();
  const int fd = fileno(file);
  const size_t length = 150000;
  char *buffer = malloc(length);
  fill(buffer, length, 3);
  must(write(fd, buffer, length) == (ssize_t)length, "write");
  off_t offset = 100;
  memset(buffer, 0, length);
  say_result("tcp sendfile at an offset", sendfile(pair.a, fd, &offset, 20000));
  say("tcp sendfile moves the offset", "%ld, file at %ld", (long)offset, (long)lseek(fd, 0, SEEK_CUR));
  recv_all(pair.b, buffer + 100, 20000);
  lseek(fd, 20100, SEEK_SET);
  off64_t offset64 = 20100;
  say_result("tcp sendfile64", sendfile64(pair.a, fd, &offset64, 30000));
  recv_all(pair.b, buffer + 20100, 30000);
  lseek(fd, 50100, SEEK_SET);
  say_result("tcp sendfile from the file's position", sendfile(pair.a, fd, NULL, 1000));
  say("tcp sendfile moves the position", "%ld", (long)lseek(fd, 0, SEEK_CUR));
  recv_all(pair.b, buffer + 50100, 1000);
  fill(buffer, 100, 3);
  say("tcp sendfile's octets", "%s", is_filled(buffer, 51100, 3) ? "equal" : "different");
  offset = (off_t)length - 5;
  say_result("tcp sendfile past the end", sendfile(pair.a, fd, &offset, 1000));
  say_result("tcp sendfile at the end", sendfile(pair.a, fd, &offset, 1000));
  say_result("tcp sendfile of no file", sendfile(pair.a, -1, &offset, 1000));
  offset = -4;
  say_result("tcp sendfile at a negative offset", sendfile(pair.a, fd, &offset, 1000));
  say("tcp what sendfile sent last", "%zu", recv_all(pair.b, buffer, 5));
  fclose(file);
  free(buffer);
  close_pair(pair);
}

/* Programs that splice read and write where splice says that it cannot. */
static void spliced(void) {
  struct pair pair = tcp_pair(AF_INET);
  int pipes[2];
  char buffer[16] = {0};
  must(pipe(pipes) == 0, "pipe");
  must(send(pair.a, "through", 7, 0) == 7, "send");
  ssize_t moved = splice(pair.b, NULL, pipes[1], NULL, 7, 0);
  if (moved < 0 && errno == EINVAL) moved = write(pipes[1], buffer, (size_t)recv(pair.b, buffer, 7, 0));
  say("tcp to a pipe", "%zd %zd %.7s", moved, read(pipes[0], buffer, sizeof buffer), buffer);
  must(write(pipes[1], "and back", 8) == 8, "write");
  moved = splice(pipes[0], NULL, pair.b, NULL, 8, 0);
  if (moved < 0 && errno == EINVAL) moved = write(pair.b, buffer, (size_t)read(pipes[0], buffer, 8));
  say("pipe to tcp", "%zd %zu %.8s", moved, recv_all(pair.a, buffer, 8), buffer);
  close(pipes[0]), close(pipes[1]);
  close_pair(pair);
}

static void options(void) {
  struct pair pair = tcp_pair(AF_INET);
  int value = 1;
  socklen_t length = sizeof value;
  say_result("tcp TCP_NODELAY", setsockopt(pair.a, IPPROTO_TCP, TCP_NODELAY, &value, length));
  value = 0;
  getsockopt(pair.a, IPPROTO_TCP, TCP_NODELAY, &value, &length);
  say("tcp TCP_NODELAY is set", "%d", value != 0);
  getsockopt(pair.a, SOL_SOCKET, SO_TYPE, &value, &length);
  say("tcp SO_TYPE", "%d", value == SOCK_STREAM);
  getsockopt(pair.a, SOL_SOCKET, SO_PROTOCOL, &value, &length);
  say("tcp SO_PROTOCOL", "%d", value == IPPROTO_TCP);
  struct tcp_info info;
  length = sizeof info;
  say_result("tcp TCP_INFO", getsockopt(pair.a, IPPROTO_TCP, TCP_INFO, &info, &length));
  say("tcp state", "%u", info.tcpi_state);
  say_result("tcp unknown option", setsockopt(pair.a, IPPROTO_TCP, 9999, &value, sizeof value));
  value = 1;
  say_result("tcp FIONBIO", ioctl(pair.b, FIONBIO, &value));
  char buffer[8];
  say_result("tcp receive after FIONBIO", recv(pair.b, buffer, sizeof buffer, 0));
  must(send(pair.a, "12345", 5, 0) == 5, "send");
  must(wait_readable(pair.b), "poll");
  say_result("tcp FIONREAD", readable(pair.b));
  must(recv(pair.b, buffer, 2, 0) == 2, "recv");
  say_result("tcp FIONREAD of the rest", readable(pair.b));
  close_pair(pair);
}

static void stdio(void) {
  struct pair pair = tcp_pair(AF_INET);
  char line[64] = {0};
  FILE *a = fdopen(pair.a, "r+"), *b = fdopen(dup(pair.b), "r");
  must(a != NULL && b != NULL, "fdopen");
  say("stdio fileno", "%d", fileno(a) == pair.a);
  say_result("stdio fprintf", fprintf(a, "line %d\nline %d\n", 1, 2));
  say_result("stdio fflush", fflush(a));
  say("stdio fgets", "%s", fgets(line, sizeof line, b) != NULL && strcmp(line, "line 1\n") == 0 ? "equal" : "different");
  say("stdio fgets again", "%s", fgets(line, sizeof line, b) != NULL && strcmp(line, "line 2\n") == 0 ? "equal" : "different");
  fclose(b);
  must(send(pair.b, "back\n", 5, 0) == 5, "send");
  say("stdio reads", "%s", fgets(line, sizeof line, a) != NULL && strcmp(line, "back\n") == 0 ? "equal" : "different");
  say("stdio fclose", "%d", fclose(a));
  say_result("stdio fclose closes", fcntl(pair.a, F_GETFD));
  say_result("stdio the peer sees the end", recv(pair.b, line, sizeof line, 0));
  close(pair.b);
}

/* Streams over descriptors that stdio was given before: stdin, stdout and stderr are whatever has
 * their numbers. */
static void stdio_duplicated(void) {
  struct pair pair = tcp_pair(AF_INET);
  static const char wanted[] = "perror: No such file or directory\nstderr\nstdout 1\n";
  char buffer[64] = {0};
  fflush(stdout);
  const int in = dup(0), out = dup(1), err = dup(2);
  must(in >= 0 && out >= 0 && err >= 0, "dup");
  must(dup2(pair.a, 0) == 0 && dup2(pair.a, 1) == 1 && dup2(pair.a, 2) == 2, "dup2");
  clearerr(stdin);
  errno = ENOENT;
  perror("perror");
  fprintf(stderr, "stderr\n");
  const int printed = printf("stdout %d\n", 1), flushed = fflush(stdout);
  const size_t got = recv_all(pair.b, buffer, sizeof wanted - 1);
  must(send(pair.b, "17 word\n", 8, 0) == 8, "send");
  int number = 0;
  char word[16] = "";
  const int scanned = scanf("%d %15s", &number, word);
  must(dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2, "dup2");
  close(in), close(out), close(err);
  clearerr(stdin);
  say("stdio by dup2", "%d %d", printed, flushed);
  say("stdio by dup2 at the peer", "%zu %s", got, strcmp(buffer, wanted) == 0 ? "equal" : "different");
  say("stdio by dup2 reads", "%d %d %s", scanned, number, word);
  FILE *wide = fdopen(pair.a, "r+");
  say_result("stdio wide", fwprintf(wide, L"%ls\n", L"wide"));
  fflush(wide);
  say("stdio wide at the peer", "%zu", recv_all(pair.b, buffer, 5));
  fputs("rest\n", wide);
  const int fd = fileno(wide);
  FILE *other = freopen("/dev/zero", "r", wide);
  say("stdio freopen", "%d %d", other == wide && fileno(other) == fd, fgetc(other));
  say_result("stdio freopen the peer sees the end", recv(pair.b, buffer, sizeof buffer, 0));
  fclose(other);
  close(pair.b);
}

/* More than a buffer at once, without a buffer, and against a peer that has left. */
static void stdio_amounts(void) {
  struct pair pair = tcp_pair(AF_INET);
  static char sent[200000], got[200000];
  fill(sent, sizeof sent, 77);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    FILE *file = fdopen(pair.b, "r+");
    const bool read = fread(got, 1, sizeof got, file) == sizeof got && is_filled(got, sizeof got, 77);
    setvbuf(file, NULL, _IONBF, 0);
    fprintf(file, read ? "whole\n" : "broken\n");
    /* exit writes what is left. */
    setvbuf(file, NULL, _IOFBF, 4096);
    fputs("last\n", file);
    exit(0);
  }
  close(pair.b);
  FILE *file = fdopen(pair.a, "r+");
  say_result("stdio fwrite", (long)fwrite(sent, 1, sizeof sent, file));
  fflush(file);
  char line[16] = {0};
  say("stdio of a child", "%s", fgets(line, sizeof line, file) != NULL && strcmp(line, "whole\n") == 0 ? "equal" : "different");
  say("stdio of its exit", "%s", fgets(line, sizeof line, file) != NULL && strcmp(line, "last\n") == 0 ? "equal" : "different");
  const int end = fgetc(file);
  say("stdio end", "%d %d %d", end, feof(file) != 0, ferror(file) != 0);
  waitpid(child, NULL, 0);
  signal(SIGPIPE, SIG_IGN);
  int failed = 0;
  for (int i = 0; i < 100 && failed == 0; i++) {
    fwrite(sent, 1, 5000, file);
    failed = fflush(file);
    poll(NULL, 0, 1);
  }
  say("stdio to nobody", "%d %d %s", failed, ferror(file) != 0, error_name(errno));
  signal(SIGPIPE, SIG_DFL);
  fclose(file);
}

void cases_stream(void) {
  amounts();
  both_ways();
  flags();
  odd_flags();
  left_half();
  small_parts();
  wait_all();
  half_close();
  broken();
  connecting();
  named_client();
  files();
  spliced();
  options();
  stdio();
  stdio_duplicated();
  stdio_amounts();
}
