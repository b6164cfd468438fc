/*
 * haul_socket.h - what a taken socket does: the border between the preloaded shim (C) and
 * crates/haul-socket (Rust).
 *
 * Internal: not installed, no stable ABI. docs/adr/0014-socket-interface.md explains why.
 *
 * Every function is called with descriptors of the program's own kernel sockets. The Rust side
 * makes its system calls with syscall(2), never by libc's names, which are the shim's; it starts no
 * thread and leaves the descriptor as it is. All functions may be called from any thread. None
 * changes errno unless it fails; those that return what a system call returns set errno as that
 * call does.
 */
#ifndef HAUL_SOCKET_H
#define HAUL_SOCKET_H

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	HAUL_SOCKET_NONE = 0,     /* not ours: call the kernel */
	HAUL_SOCKET_DATAGRAM = 1, /* UDP: send and receive through here */
	HAUL_SOCKET_STREAM = 2    /* TCP that is iWARP: send, receive and shut down through here */
};

/* Once per process, and again in a program after exec, with the values of HAUL_RUN_TABLE (a path)
 * and HAUL_RUN_ID (a number) from secure_getenv(3), or NULL: 1 under haul run, 0 otherwise, and
 * then every other call does nothing. Takes up sockets that the process has inherited. */
int haul_socket_start(const char *table, const char *run);

/* In the child after fork (not vfork), before anything else. */
void haul_socket_forked(void);
/* Before fork: the child has the sockets, too, whatever the parent does with them before the child
 * runs. */
void haul_socket_forking(void);
/* Before posix_spawn, and before exec in the child of a vfork: likewise, of descriptors that exec
 * keeps. */
void haul_socket_spawning(void);
/* Likewise, of one descriptor that such a child will have. */
void haul_socket_shared(int fd);

/* Before exec(3): no peer learns that the sockets of this process speak iWARP until the program
 * after it takes them up again. If exec returns, call haul_socket_start again (its arguments do not
 * matter then). */
void haul_socket_before_exec(void);

/* After socket(2), with its arguments. */
void haul_socket_opened(int fd, int domain, int type, int protocol);

/* After a successful bind(2), listen(2), accept4(2). */
void haul_socket_bound(int fd);
void haul_socket_listening(int fd);
void haul_socket_accepted(int listener, int fd);

/* After a successful setsockopt(2) or fcntl(2) that this header's user saw: options that framing
 * cannot keep (UDP_SEGMENT, UDP_GRO, UDP_CORK) give the socket back to the kernel. */
void haul_socket_option(int fd, int level, int name);

/* Instead of connect(2). */
int haul_socket_connect(int fd, const struct sockaddr *to, socklen_t length);

/* Of connections through a gateway the kernel knows the near end only. After a successful
 * getsockopt(2) of SO_ERROR: why it failed; after a successful getpeername(2) with room for an
 * address of `room` bytes: its destination. */
void haul_socket_error(int fd, int *error);
void haul_socket_peer(int fd, struct sockaddr *address, socklen_t room, socklen_t *length);

/* Instead of sendmsg(2) and recvmsg(2) where haul_socket_kind is not 0; every other way to send or
 * receive is made of these. */
ssize_t haul_socket_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t haul_socket_recvmsg(int fd, struct msghdr *message, int flags);

/* A datagram received by the shim itself, so that its thread waits, is interrupted and is cancelled
 * in libc's call, with one system call. haul_socket_arrival returns 1 and fills `message`, or 0
 * where haul_socket_recvmsg is to be called instead. After recvmsg(2) into that message, or
 * recvfrom(2) into its first vector if it has one and nothing but a name is asked for,
 * haul_socket_arrived, with what the call returned, returns how many bytes to return; -1: none, the
 * call failed or the datagram was damaged, and is gone. */
struct haul_socket_arrival {
	struct msghdr message;
	struct iovec vectors[6];
	unsigned char head[50];
	unsigned char way;
};
int haul_socket_arrival(int fd, const struct msghdr *message, int flags, struct haul_socket_arrival *arrival);
ssize_t haul_socket_arrived(int fd, struct msghdr *message, int flags, const struct haul_socket_arrival *arrival, ssize_t length);

/* Verified bytes of a stream that wait in user space (16 KiB at most), so that a receive would not
 * wait although the kernel's socket may have nothing; 0 for datagrams. FIONREAD of a datagram
 * socket: receive with MSG_PEEK | MSG_TRUNC and no buffer. */
int haul_socket_pending(int fd);

/* Instead of shutdown(2) where haul_socket_kind is not 0. */
int haul_socket_shutdown(int fd, int how);

/* After dup, dup2, dup3, F_DUPFD, F_DUPFD_CLOEXEC. With dup2 and dup3 call haul_socket_closed(to)
 * before. */
void haul_socket_duplicated(int from, int to);

/* A descriptor that came otherwise (SCM_RIGHTS, pidfd_getfd). */
void haul_socket_received(int fd);

/* Before close(2) of this descriptor. */
void haul_socket_closed(int fd);

/* One of HAUL_SOCKET_*: a load from an array by descriptor, without a lock or a system call; any
 * int may be asked. */
int haul_socket_kind(int fd);

#ifdef __cplusplus
}
#endif

#endif
