/*
 * stream: bytes over UDT, both ways, and the end of each direction.
 *
 *   stream                    waits for a peer on loopback, receives all it sends, and answers with
 *                             how much that was
 *   stream HOST PORT [MIB]    sends so many MiB in an event loop, and reads the answer
 */
#include "example.h"

/* What an end sends or receives at once; no divisor of anything. */
#define PIECE 100003

static unsigned char byte_at(uint64_t at) {
  return (unsigned char)(at * 0x9e3779b97f4a7c15u >> 56);
}

/* The device that HAUL_STREAM_DEVICE names, else that of this process. */
static haul_context *open_udt(void) {
  haul_context *context;
  haul_device_info info = HAUL_DEVICE_INFO_INIT;
  const char *name = getenv("HAUL_STREAM_DEVICE");
  must(NULL, haul_open(name != NULL ? name : "soft-udt", NULL, &context));
  must(context, haul_query(context, &info));
  if ((info.caps & HAUL_CAP_STREAM) == 0) {
    fail("the device has no byte streams");
  }
  return context;
}

/* Ends this direction; waits until the peer has all. */
static void finish(haul_context *context, haul_stream *stream) {
  must(context, haul_stream_shutdown(stream));
  int ready = must(context, haul_stream_wait(stream, HAUL_STREAM_SENT | HAUL_STREAM_OVER, PATIENCE_NS));
  if ((ready & HAUL_STREAM_SENT) == 0) {
    fail("what was sent did not arrive");
  }
}

static void serve(void) {
  static unsigned char bytes[PIECE];
  struct sockaddr_in address;
  socklen_t len = sizeof address;
  haul_stream_listener *listener;
  haul_stream *stream;
  haul_context *context = open_udt();
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  must(context, haul_stream_listen(context, (struct sockaddr *)&address, len, NULL, &listener));
  must(context, haul_stream_listener_address(listener, (struct sockaddr *)&address, &len));
  printf("listening on port %u\n", ntohs(address.sin_port));
  fflush(stdout);
  if (must(context, haul_stream_accept_wait(listener, PATIENCE_NS, &stream)) == 0) {
    fail("nobody came");
  }
  haul_stream_listener_destroy(listener);

  uint64_t all = 0;
  for (;;) {
    int count = haul_stream_recv(stream, bytes, sizeof bytes);
    if (count == HAUL_ERR_ENDED) {
      break;
    }
    if (must(context, count) == 0 && must(context, haul_stream_wait(stream, HAUL_STREAM_READABLE, PATIENCE_NS)) == 0) {
      fail("nothing comes any more");
    }
    for (int i = 0; i < count; i++, all++) {
      if (bytes[i] != byte_at(all)) {
        fail("wrong data at byte %llu", (unsigned long long)all);
      }
    }
  }
  /* The peer's half has ended, and this one goes on. */
  must(context, haul_stream_send(stream, &all, sizeof all));
  finish(context, stream);
  printf("received %llu bytes\n", (unsigned long long)all);
  haul_stream_destroy(stream);
  haul_close(context);
}

/* Connects, not knowing yet whether anybody is there. */
static haul_stream *begin(haul_context *context, const char *host, const char *port, const haul_stream_options *options) {
  struct addrinfo hints, *found;
  haul_stream *stream;
  memset(&hints, 0, sizeof hints);
  hints.ai_socktype = SOCK_DGRAM;
  int error = getaddrinfo(host, port, &hints, &found);
  if (error != 0) {
    fail("%s port %s: %s", host, port, gai_strerror(error));
  }
  must(context, haul_stream_connect(context, found->ai_addr, found->ai_addrlen, options, &stream));
  freeaddrinfo(found);
  return stream;
}

/* The event loop's wait: asked first, so that the descriptor reports what changes after that. */
static void await(haul_context *context, haul_stream *stream, uint32_t wanted) {
  if (must(context, haul_stream_poll(stream, wanted | HAUL_STREAM_OVER)) != 0) {
    return;
  }
  struct pollfd fd = {.fd = must(context, haul_stream_fd(stream)), .events = POLLIN};
  if (poll(&fd, 1, (int)(PATIENCE_NS / 1000000)) <= 0) {
    fail("the stream stayed silent");
  }
}

static void send_all(const char *host, const char *port, uint64_t all) {
  static unsigned char bytes[PIECE];
  haul_context *context = open_udt();
  haul_stream_options options = HAUL_STREAM_OPTIONS_INIT;
  options.send_bytes = 1 << 20;
  haul_stream *stream = begin(context, host, port, &options);
  int64_t start = now_ns();
  for (uint64_t sent = 0; sent < all;) {
    size_t len = all - sent < PIECE ? (size_t)(all - sent) : PIECE;
    for (size_t i = 0; i < len; i++) {
      bytes[i] = byte_at(sent + i);
    }
    for (size_t at = 0; at < len;) {
      int count = must(context, haul_stream_send(stream, bytes + at, len - at));
      at += (size_t)count;
      if (count == 0) {
        await(context, stream, HAUL_STREAM_WRITABLE);
      }
    }
    sent += len;
  }
  finish(context, stream);
  double seconds = (double)(now_ns() - start) / 1e9;

  uint64_t answer = 0;
  for (size_t at = 0; at < sizeof answer;) {
    int count = must(context, haul_stream_recv(stream, (char *)&answer + at, sizeof answer - at));
    at += (size_t)count;
    if (count == 0) {
      await(context, stream, HAUL_STREAM_READABLE);
    }
  }
  char byte;
  int count;
  while ((count = haul_stream_recv(stream, &byte, 1)) == 0) {
    await(context, stream, HAUL_STREAM_READABLE);
  }
  haul_stream_info info = HAUL_STREAM_INFO_INIT;
  must(context, haul_stream_query(stream, &info));
  if (count != HAUL_ERR_ENDED || answer != all || info.given_bytes != all || info.arrived_bytes != all ||
      info.received_bytes != sizeof answer || info.flags != HAUL_STREAM_PEER_ENDED) {
    fail("%llu bytes were sent, %llu arrived, the peer reports %llu, then %d", (unsigned long long)all,
         (unsigned long long)info.arrived_bytes, (unsigned long long)answer, count);
  }
  printf("sent %llu bytes, %.0f MB/s\n", (unsigned long long)all, (double)all / 1e6 / seconds);
  haul_stream_destroy(stream);

  /* Nobody listens there any more, and the failure is reported. */
  stream = begin(context, host, port, NULL);
  if ((must(context, haul_stream_wait(stream, HAUL_STREAM_OPEN | HAUL_STREAM_OVER, PATIENCE_NS)) & HAUL_STREAM_OPEN) != 0) {
    fail("a peer that is gone has answered");
  }
  must(context, haul_stream_query(stream, &info));
  int error = haul_stream_send(stream, &byte, 1);
  if ((error != HAUL_ERR_OS && error != HAUL_ERR_TIMED_OUT) || info.reason[0] == '\0' || haul_last_errno(context) == 0) {
    fail("%s: %s", haul_strerror(error), info.reason);
  }
  haul_stream_destroy(stream);
  haul_close(context);
}

int main(int count, char **arguments) {
  if (count == 1) {
    serve();
  } else if (count == 3 || count == 4) {
    send_all(arguments[1], arguments[2], (count == 4 ? number(arguments[3]) : 64) << 20);
  } else {
    fail("usage: stream [HOST PORT [MIB]]");
  }
  return 0;
}
