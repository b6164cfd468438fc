/* cases_errors.c - what is no socket, or no descriptor, and what files and pipes do, which nobody
 * takes. */
#include "calls.h"

/* "call of what", in a text of 64. */
static const char *named(char *text, const char *call, const char *what) {
  snprintf(text, 64, "%s %s", call, what);
  return text;
}

/* Every call that is about sockets, of something that is none. */
static void all_of(int fd, const char *what) {
  char text[64];
  char buffer[8] = {0};
  struct iovec vector = {buffer, sizeof buffer};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
  struct mmsghdr messages = {.msg_hdr = message};
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int value = 0;
  socklen_t length = sizeof value;
  say_result(named(text, "bind", what), bind(fd, (struct sockaddr *)&name, sizeof name));
  say_result(named(text, "listen", what), listen(fd, 1));
  say_result(named(text, "connect", what), connect(fd, (struct sockaddr *)&name, sizeof name));
  say_result(named(text, "accept", what), accept(fd, NULL, NULL));
  say_result(named(text, "accept4", what), accept4(fd, NULL, NULL, 0));
  say_result(named(text, "shutdown", what), shutdown(fd, SHUT_WR));
  say_result(named(text, "getsockname", what), getsockname(fd, (struct sockaddr *)&name, &length));
  say_result(named(text, "getsockopt", what), getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length));
  say_result(named(text, "setsockopt", what), setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value));
  say_result(named(text, "recv", what), recv(fd, buffer, sizeof buffer, 0));
  say_result(named(text, "recvfrom", what), recvfrom(fd, buffer, sizeof buffer, 0, NULL, NULL));
  say_result(named(text, "recvmsg", what), recvmsg(fd, &message, 0));
  say_result(named(text, "recvmmsg", what), recvmmsg(fd, &messages, 1, 0, NULL));
  say_result(named(text, "send", what), send(fd, buffer, 1, 0));
  say_result(named(text, "sendto", what), sendto(fd, buffer, 1, 0, (struct sockaddr *)&name, sizeof name));
  say_result(named(text, "sendmsg", what), sendmsg(fd, &message, 0));
  say_result(named(text, "sendmmsg", what), sendmmsg(fd, &messages, 1, 0));
}

static void no_descriptor(void) {
  char buffer[8];
  struct iovec vector = {buffer, sizeof buffer};
  all_of(-1, "of no descriptor");
  say_result("read of no descriptor", read(-1, buffer, 1));
  say_result("write of no descriptor", write(-1, buffer, 1));
  say_result("readv of no descriptor", readv(-1, &vector, 1));
  say_result("writev of no descriptor", writev(-1, &vector, 1));
  say_result("fcntl of no descriptor", fcntl(-1, F_GETFL));
  say_result("ioctl of no descriptor", ioctl(-1, FIONREAD, buffer));
  say_result("dup of no descriptor", dup(-1));
  say_result("close of no descriptor", close(-1));
  say_result("fdopen of no descriptor", fdopen(-1, "r") == NULL ? -1 : 0);
  say_result("read of a number beyond all", read(1 << 30, buffer, 1));
  say_result("socket of no family", socket(9999, SOCK_STREAM, 0));
  say_result("socket of no protocol", socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
}

static void files(void) {
  FILE *file = tmpfile();
  const int fd = fileno(file);
  char buffer[16] = {0};
  struct iovec vectors[2] = {{buffer, 4}, {buffer + 4, 4}};
  all_of(fd, "of a file");
  say_result("file write", write(fd, "0123456789", 10));
  say_result("file writev", writev(fd, vectors, 2));
  say_result("file position", lseek(fd, 0, SEEK_SET));
  say_result("file read", read(fd, buffer, 3));
  say_result("file readv", readv(fd, vectors, 2));
  say_result("file preadv2", preadv2(fd, vectors, 2, 5, 0));
  say_result("file pwritev2", pwritev2(fd, vectors, 1, 0, 0));
  say_result("file preadv2 at its position", preadv2(fd, vectors, 1, -1, 0));
  say_result("file dprintf", dprintf(fd, "%d", 42));
  say_result("file fcntl", fcntl(fd, F_GETFL) & O_ACCMODE);
  struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT};
  say("file poll", "%d %x", poll(&one, 1, 0), (unsigned)one.revents);
  const int copy = open("/dev/null", O_WRONLY);
  off_t offset = 0;
  say_result("file to file", sendfile(copy, fd, &offset, 4));
  close(copy);
  say_result("file fclose", fclose(file));
}

static void pipes(void) {
  int fds[2];
  char buffer[8];
  must(pipe(fds) == 0, "pipe");
  say_result("pipe write", write(fds[1], "abc", 3));
  say_result("pipe FIONREAD", readable(fds[0]));
  struct pollfd one = {.fd = fds[0], .events = POLLIN};
  say_result("pipe poll", poll(&one, 1, 0));
  say_result("pipe read", read(fds[0], buffer, sizeof buffer));
  close(fds[1]);
  say_result("pipe end", read(fds[0], buffer, sizeof buffer));
  close(fds[0]);
}

void cases_errors(void) {
  no_descriptor();
  files();
  pipes();
}
