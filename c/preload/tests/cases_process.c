/* cases_process.c - duplicates, closing, fork, vfork, exec, spawn, descriptors passed along. */
#include "calls.h"

#include <spawn.h>

static void duplicates(const char *kind, struct pair pair) {
  char name[64], buffer[16];
  const int copies[4] = {dup(pair.a), fcntl(pair.a, F_DUPFD, 100), fcntl(pair.a, F_DUPFD_CLOEXEC, 100), dup3(pair.a, 200, O_CLOEXEC)};
  for (int i = 0; i < 4; i++) {
    const bool sent = send(copies[i], "copy", 4, 0) == 4;
    snprintf(name, sizeof name, "%s by duplicate %d", kind, i);
    say(name, "%d %zu", sent, (size_t)recv(pair.b, buffer, 4, 0));
  }
  snprintf(name, sizeof name, "%s dup2 of itself", kind);
  say(name, "%d", dup2(pair.a, pair.a) == pair.a);
  close(pair.a);
  snprintf(name, sizeof name, "%s after the first is closed", kind);
  must(send(copies[1], "still", 5, 0) == 5, "send");
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  const int taken_over = dup2(copies[0], pair.b + 50);
  must(send(taken_over, "over", 4, 0) == 4, "send");
  snprintf(name, sizeof name, "%s by dup2", kind);
  say_result(name, recv(pair.b, buffer, sizeof buffer, 0));
  for (int i = 0; i < 4; i++) close(copies[i]);
  close(taken_over), close(pair.b);
}

static void replaced(void) {
  struct pair one = tcp_pair(AF_INET), two = tcp_pair(AF_INET);
  char buffer[8];
  must(dup2(two.a, one.a) == one.a, "dup2");
  say_result("dup2 closes what was there", recv(one.b, buffer, sizeof buffer, 0));
  must(send(one.a, "two", 3, 0) == 3, "send");
  say_result("dup2 puts the other there", recv(two.b, buffer, sizeof buffer, 0));
  const int file = open("/dev/null", O_RDWR);
  must(dup2(file, one.a) == one.a, "dup2");
  say_result("a file takes the number", write(one.a, "gone", 4));
  say_result("a file is no socket", send(one.a, "gone", 4, 0));
  say_result("dup2 of nothing", dup2(-1, one.a));
  say_result("dup3 of itself", dup3(one.a, one.a, 0));
  close(file);
  close_pair(one), close_pair(two);
}

static void closed(void) {
  struct pair pair = tcp_pair(AF_INET);
  char buffer[8];
  say_result("close", close(pair.a));
  say_result("close again", close(pair.a));
  say_result("send on a closed one", send(pair.a, "x", 1, 0));
  say_result("peer of a closed one", recv(pair.b, buffer, sizeof buffer, 0));
  close(pair.b);
  pair = tcp_pair(AF_INET);
  const int high = fcntl(pair.a, F_DUPFD, 500);
  close(pair.a);
  say_result("close_range", close_range(500, 600, 0));
  say_result("close_range closed it", fcntl(high, F_GETFD));
  say_result("close_range's peer", recv(pair.b, buffer, sizeof buffer, 0));
  say_result("close_range of nonsense", close_range(9, 3, 0));
  close(pair.b);
  const int reused = open("/dev/zero", O_RDONLY);
  say_result("a number is used again", read(reused, buffer, sizeof buffer));
  close(reused);
}

static void forked(void) {
  struct pair pair = tcp_pair(AF_INET), udp = udp_pair(AF_INET);
  char buffer[32];
  must(send(pair.a, "before", 6, 0) == 6, "send");
  say("tcp before fork", "%zu", recv_all(pair.b, buffer, 6));
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    close(pair.a);
    const bool echoed = recv_all(pair.b, buffer, 4) == 4 && send_all(pair.b, buffer, 4);
    const bool heard = recv(udp.b, buffer, sizeof buffer, 0) == 3 && send(udp.b, buffer, 3, 0) == 3;
    _exit(echoed && heard ? 0 : 1);
  }
  close(pair.b);
  must(send(pair.a, "echo", 4, 0) == 4 && send(udp.a, "udp", 3, 0) == 3, "send");
  say("tcp child answers", "%zu %.4s", recv_all(pair.a, buffer, 4), buffer);
  say_result("udp child answers", recv(udp.a, buffer, sizeof buffer, 0));
  int status;
  waitpid(child, &status, 0);
  say("child ended", "%d", status);
  say_result("tcp end when the child ends", recv(pair.a, buffer, sizeof buffer, 0));
  close(pair.a);
  close_pair(udp);
}

/* A server that forks for each connection, after it has a listener. */
static void served(void) {
  const int listener = bound_socket(AF_INET, SOCK_STREAM);
  socklen_t length;
  const struct sockaddr_storage name = name_of(listener, &length);
  fflush(stdout);
  const pid_t server = fork();
  if (server == 0) {
    for (int i = 0; i < 3; i++) {
      const int fd = accept(listener, NULL, NULL);
      if (fork() == 0) {
        char buffer[64];
        close(listener);
        const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        _exit(got > 0 && send_all(fd, buffer, (size_t)got) ? 0 : 1);
      }
      close(fd);
    }
    while (wait(NULL) > 0) continue;
    _exit(0);
  }
  close(listener);
  for (int i = 0; i < 3; i++) {
    char buffer[16] = {0}, text[32];
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(fd, (const struct sockaddr *)&name, length) == 0, "connect");
    must(send(fd, "question", 8, 0) == 8, "send");
    snprintf(text, sizeof text, "forking server %d", i);
    say(text, "%zu %s", recv_all(fd, buffer, 8), buffer);
    close(fd);
  }
  waitpid(server, NULL, 0);
}

/* The child of a vfork closes and replaces descriptors; its parent goes on with them. */
static void borrowed(void) {
  struct pair pair = tcp_pair(AF_INET);
  char buffer[16];
  const pid_t child = vfork();
  if (child == 0) {
    close(pair.a);
    dup2(pair.b, 0);
    close(pair.b);
    execl("/bin/true", "true", (char *)NULL);
    _exit(9);
  }
  int status;
  waitpid(child, &status, 0);
  say("vfork and exec", "%d", status);
  must(send(pair.a, "parent", 6, 0) == 6, "send");
  say_result("vfork's parent goes on", recv(pair.b, buffer, sizeof buffer, 0));
  close_pair(pair);
}

static void replaced_program(void) {
  int pipes[2];
  char text[64];
  static const struct {
    const char *name;
    int how;
  } ways[] = {{"execv", 0}, {"execve", 1}, {"execvp", 2}, {"execvpe", 3}, {"execl", 4}, {"execle", 5}, {"execlp", 6}, {"fexecve", 7}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    must(pipe(pipes) == 0, "pipe");
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      char *const arguments[] = {"echo", "from", (char *)(uintptr_t)ways[i].name, NULL};
      char *const environment[] = {"PATH=/bin:/usr/bin", NULL};
      dup2(pipes[1], 1);
      close(pipes[0]), close(pipes[1]);
      switch (ways[i].how) {
        case 0: execv("/bin/echo", arguments); break;
        case 1: execve("/bin/echo", arguments, environment); break;
        case 2: execvp("echo", arguments); break;
        case 3: execvpe("echo", arguments, environment); break;
        case 4: execl("/bin/echo", "echo", "from", ways[i].name, (char *)NULL); break;
        case 5: execle("/bin/echo", "echo", "from", ways[i].name, (char *)NULL, environment); break;
        case 6: execlp("echo", "echo", "from", ways[i].name, (char *)NULL); break;
        default: fexecve(open("/bin/echo", O_RDONLY), arguments, environment);
      }
      _exit(9);
    }
    close(pipes[1]);
    char line[32] = {0};
    const ssize_t got = read(pipes[0], line, sizeof line - 1);
    int status;
    waitpid(child, &status, 0);
    snprintf(text, sizeof text, "program by %s", ways[i].name);
    if (got > 0) line[got - 1] = '\0';
    say(text, "%d %s", status, line);
    close(pipes[0]);
  }
  char *const arguments[] = {"true", NULL};
  pid_t child;
  say_result("posix_spawn", posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ));
  int status = -1;
  waitpid(child, &status, 0);
  say("posix_spawn ended", "%d", status);
  say_result("exec of nothing", execl("/nowhere", "nowhere", (char *)NULL));
}

static bool pass(int through, int fd) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct iovec vector = {"f", 1};
  const struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
  control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
  return sendmsg(through, &message, 0) == 1;
}

static int take(int through) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  char octet;
  int fd = -1;
  struct iovec vector = {&octet, 1};
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (recvmsg(through, &message, 0) == 1 && message.msg_controllen >= CMSG_LEN(sizeof fd))
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

static void passed(void) {
  int through[2];
  char buffer[16];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, through) == 0, "socketpair");
  struct pair udp = udp_pair(AF_INET);
  say("udp is passed", "%d", pass(through[0], udp.b));
  const int datagrams = take(through[1]);
  must(send(udp.a, "passed", 6, 0) == 6, "send");
  say_result("udp that was passed", recv(datagrams, buffer, sizeof buffer, 0));
  close(datagrams);
  close_pair(udp);
  const int listener = bound_socket(AF_INET, SOCK_STREAM);
  socklen_t length;
  const struct sockaddr_storage name = name_of(listener, &length);
  must(pass(through[0], listener), "sendmsg");
  const int other = take(through[1]);
  close(listener);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  must(connect(fd, (const struct sockaddr *)&name, length) == 0, "connect");
  const int there = accept(other, NULL, NULL);
  must(send(fd, "hello", 5, 0) == 5, "send");
  say_result("listener that was passed", recv(there, buffer, sizeof buffer, 0));
  say_result("unix socket stays itself", send(through[0], "unix", 4, 0));
  say_result("unix socket receives", recv(through[1], buffer, sizeof buffer, 0));
  close(fd), close(there), close(other), close(through[0]), close(through[1]);
}

enum way { FORK, FORK_EXEC, VFORK_EXEC, SPAWN };

/* A child that reads a line and answers. */
static pid_t child_with(int fd, enum way way) {
  char script[] = "sleep 0.05; read -r line; echo \"got $line\"", buffer[16];
  char *const arguments[] = {"sh", "-c", script, NULL};
  posix_spawn_file_actions_t actions;
  pid_t child;
  if (way == SPAWN) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    must(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) == 0, "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    return child;
  }
  child = way == VFORK_EXEC ? vfork() : fork();
  if (child != 0) return child;
  if (way == FORK) {
    poll(NULL, 0, 20);
    _exit(recv_all(fd, buffer, 6) == 6 && send_all(fd, "got words\n", 10) ? 0 : 1);
  }
  dup2(fd, 0), dup2(fd, 1);
  execv("/bin/sh", arguments);
  _exit(9);
}

/* Who starts a program with a connection closes it at once: the child is the only one that has it
 * then. */
static void left_to_child(const char *name, enum way way) {
  int right = 0;
  char buffer[16];
  for (int i = 0; i < 5; i++) {
    struct pair pair = tcp_pair(AF_INET);
    /* What is held in user space goes along. */
    must(send(pair.a, "first\nwords\n", 12, 0) == 12 && recv_all(pair.b, buffer, 6) == 6, "recv");
    fcntl(pair.a, F_SETFD, FD_CLOEXEC);
    fcntl(pair.b, F_SETFD, way == FORK_EXEC ? 0 : FD_CLOEXEC);
    fflush(stdout);
    const pid_t child = child_with(pair.b, way);
    close(pair.b);
    right += recv_all(pair.a, buffer, 10) == 10 && memcmp(buffer, "got words\n", 10) == 0;
    close(pair.a);
    waitpid(child, NULL, 0);
  }
  say(name, "%d of 5", right);
}

/* A daemon's first act. */
static void closed_all(void) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    closefrom(3);
    struct pair pair = tcp_pair(AF_INET), udp = udp_pair(AF_INET);
    char buffer[8];
    const bool tcp = send(pair.a, "tcp", 3, 0) == 3 && recv(pair.b, buffer, 8, 0) == 3;
    const bool datagram = send(udp.a, "udp", 3, 0) == 3 && recv(udp.b, buffer, 8, 0) == 3;
    for (int fd = 3; fd < 64; fd++) close(fd);
    udp = udp_pair(AF_INET);
    const bool again = send(udp.a, "udp", 3, 0) == 3 && recv(udp.b, buffer, 8, 0) == 3;
    _exit(tcp && datagram && again ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  say("everything closed, then sockets", "%d", status);
}

void cases_process(void) {
  duplicates("tcp", tcp_pair(AF_INET));
  duplicates("udp", udp_pair(AF_INET));
  replaced();
  closed();
  forked();
  served();
  borrowed();
  replaced_program();
  passed();
  closed_all();
}

/* Only where what a process leaves to the program after it is kept. */
void cases_inherited(void) {
  left_to_child("left to a child by fork", FORK);
  left_to_child("left to a program by fork", FORK_EXEC);
  left_to_child("left to a program by vfork", VFORK_EXEC);
  left_to_child("left to a program by posix_spawn", SPAWN);
}
