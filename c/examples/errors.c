/*
 * errors: what fails, how it is reported, and that nothing breaks.
 */
#include "pair.h"

static struct pair pair;

/* The call must fail like this, and the error text must contain these words. */
static void expect(int result, int wanted, haul_context *context, const char *words) {
  char text[512];
  haul_last_error(context, text, sizeof text);
  if (result != wanted) {
    fail("%s (%d) instead of %s: %s", haul_strerror(result), result, haul_strerror(wanted), text);
  }
  if (strstr(text, words) == NULL) {
    fail("'%s' does not contain: %s", text, words);
  }
}

static void without_a_device(void) {
  haul_context *context = (haul_context *)&pair;
  expect(haul_open("no-such-device", NULL, &context), HAUL_ERR_NO_DEVICE, NULL, "there is no device no-such-device; there are: soft-tcp");
  if (context != NULL) {
    fail("a failed call has made something");
  }
  expect(haul_open("soft", NULL, NULL), HAUL_ERR_INVALID, NULL, "haul_open");
  haul_open_options options = HAUL_OPEN_OPTIONS_INIT;
  options.size = 0;
  expect(haul_open("soft", &options, &context), HAUL_ERR_INVALID, NULL, "size is 0, and must be ");
  options.size = sizeof options;
  options.flags = 1u << 30;
  expect(haul_open("soft", &options, &context), HAUL_ERR_INVALID, NULL, "flags is 0x40000000, and must be of HAUL_OPEN_");
  options.flags = 0;
  options.fpdu_max = 3;
  expect(haul_open("soft", &options, &context), HAUL_ERR_INVALID, NULL, "haul_open: fpdu_max is 3, and must be at least 512");
  options.fpdu_max = 0;
  options.engine_cpus = "1";
  expect(haul_open("soft", &options, &context), HAUL_ERR_INVALID, NULL, "engine_cpus needs the flag HAUL_OPEN_ENGINE");
  options.flags = HAUL_OPEN_ENGINE;
  options.engine_cpus = "one";
  expect(haul_open("soft", &options, &context), HAUL_ERR_INVALID, NULL, "engine_cpus 'one' names no processors: write 1, 2,3 or 4-7");
  options.engine_cpus = "1023";
  expect(haul_open("soft", &options, &context), HAUL_ERR_OS, NULL, "this process may not use all of the processors 1023");
  options.engine_cpus = NULL;
  must(NULL, haul_open("soft", &options, &context));
  haul_close(context);
  options.flags = 0;
  options.pcap = "/dev/null/no-such-file";
  expect(haul_open("soft", &options, &context), HAUL_ERR_OS, NULL, "pcap");
  if (haul_last_errno(NULL) == 0) {
    fail("the operating system's number is lost");
  }
  expect(haul_cq_poll(NULL, NULL, 0), HAUL_ERR_INVALID, NULL, "haul_cq_poll: the handle is NULL");
}

/* A program that was compiled with a newer or an older header. */
static void structures_of_other_versions(void) {
  struct {
    haul_open_options known;
    uint64_t unknown;
  } newer = {HAUL_OPEN_OPTIONS_INIT, 0};
  haul_context *context;
  newer.known.size = sizeof newer;
  must(NULL, haul_open("soft", &newer.known, &context));
  haul_close(context);
  newer.unknown = 1;
  expect(haul_open("soft", &newer.known, &context), HAUL_ERR_INVALID, NULL, "newer");

  struct {
    haul_device_info known;
    uint64_t unknown;
  } info;
  memset(&info, 0xff, sizeof info);
  info.known.size = sizeof info;
  must(pair.context, haul_query(pair.context, &info.known));
  if (info.known.size != sizeof info.known || info.unknown != 0 || strcmp(info.known.provider, "soft") != 0) {
    fail("a longer structure was not filled as it should be");
  }
  info.known.size = sizeof info.known - 1;
  expect(haul_query(pair.context, &info.known), HAUL_ERR_INVALID, pair.context, "size");
}

static void devices_and_providers(void) {
  haul_device_list *list;
  haul_device_info device = HAUL_DEVICE_INFO_INIT;
  haul_provider_info provider = HAUL_PROVIDER_INFO_INIT;
  size_t devices = 0, promised = 0, providers = 0;
  must(NULL, haul_device_list_create(&list));
  for (; must(NULL, haul_device_list_device(list, devices, &device)) == 1; devices++) {
    printf("device %s of provider %s\n", device.name, device.provider);
  }
  for (; must(NULL, haul_device_list_provider(list, providers, &provider)) == 1; providers++) {
    promised += provider.devices;
    printf("provider %s: %u devices %s\n", provider.name, provider.devices, provider.reason);
  }
  if (devices == 0 || devices != promised) {
    fail("%zu devices, and %zu of providers", devices, promised);
  }
  haul_device_list_destroy(list);
}

static void texts_of_any_length(void) {
  char text[8] = "xxxxxxx";
  haul_pd_create(NULL, NULL);
  size_t whole = haul_last_error(NULL, NULL, 0);
  if (whole <= sizeof text || haul_last_error(NULL, text, sizeof text) != whole || strlen(text) != sizeof text - 1) {
    fail("a text of %zu bytes became '%s'", whole, text);
  }
  for (int status = 1; status > -100; status--) {
    if (haul_strerror(status) == NULL || haul_wc_status_str((uint32_t)status) == NULL) {
      fail("a status without words");
    }
  }
}

static void arguments(void) {
  haul_context *context = pair.context;
  haul_mr *mr;
  haul_cq *cq;
  haul_qp *qp;
  char byte = 0;
  expect(haul_mr_reg(pair.pd, NULL, 1, 0, &mr), HAUL_ERR_INVALID, context, "NULL");
  expect(haul_mr_reg(pair.pd, &byte, 0, 0, &mr), HAUL_ERR_INVALID, context, "len is 0, and must be at least 1");
  expect(haul_mr_reg(pair.pd, &byte, 1, HAUL_ACCESS_REMOTE_WRITE, &mr), HAUL_ERR_INVALID, context, "LOCAL_WRITE");
  expect(haul_mr_reg(pair.pd, &byte, 1, 1u << 20, &mr), HAUL_ERR_INVALID, context, "access is 0x100000, and must be of HAUL_ACCESS_");
  expect(haul_mr_alloc(pair.pd, 0, 0, &mr), HAUL_ERR_OS, context, "haul_mr_alloc");
  expect(haul_cq_create(context, 0, NULL, 0, &cq), HAUL_ERR_INVALID, context, "entries is 0, and must be at least 1");
  expect(haul_cq_arm(pair.near.cq, 0), HAUL_ERR_INVALID, context, "channel");
  expect(haul_cq_poll(pair.near.cq, NULL, 1), HAUL_ERR_INVALID, context, "NULL");
  haul_qp_init init = HAUL_QP_INIT;
  expect(haul_qp_create(pair.pd, &init, &qp), HAUL_ERR_INVALID, context, "cq");
  init.send_cq = init.recv_cq = pair.near.cq;
  init.type = HAUL_QPT_RD;
  expect(haul_qp_create(pair.pd, &init, &qp), HAUL_ERR_UNSUPPORTED, context, "haul_query");
  init.type = HAUL_QPT_RC;
  init.max_send_sge = 1000;
  expect(haul_qp_create(pair.pd, &init, &qp), HAUL_ERR_INVALID, context, "max_send_sge is 1000, and must be at most 4");
  struct sockaddr nowhere = {.sa_family = AF_UNIX};
  haul_listener *listener;
  expect(haul_listen(context, &nowhere, sizeof nowhere, pair.far.events, 1, &listener), HAUL_ERR_INVALID, context, "address");
  struct sockaddr *taken = (struct sockaddr *)&pair.address;
  expect(haul_listen(context, taken, sizeof pair.address, pair.far.events, 1, &listener), HAUL_ERR_OS, context, "choose another one");
  if (haul_last_errno(context) == 0) {
    fail("the operating system's number is lost");
  }
}

static void posting(void) {
  haul_context *context = pair.context;
  size_t posted = 99;
  char byte = 0;
  haul_sge piece = {.addr = (uintptr_t)&byte, .len = 1}, many[5] = {{0, 0, 0}};
  haul_send_wr good = {.opcode = HAUL_WR_SEND, .flags = HAUL_SEND_INLINE, .sges = &piece, .num_sge = 1};
  haul_qp *fresh = make_qp(&pair, &pair.near, NULL);
  expect(haul_post_send(fresh, &good, 1, &posted), HAUL_ERR_STATE, context, "HAUL_CM_ESTABLISHED");
  expect(haul_disconnect(fresh), HAUL_ERR_STATE, context, "haul_disconnect");
  haul_qp_destroy(fresh);

  /* A batch stops at what is wrong with it; what stands before that arrives. */
  char arrived = 1;
  haul_mr *mr;
  must(context, haul_mr_reg(pair.pd, &arrived, 1, HAUL_ACCESS_LOCAL_WRITE, &mr));
  haul_mr_info info = mr_info(context, mr);
  haul_sge place = {.addr = info.addr, .len = 1, .lkey = info.lkey};
  post_recv(context, pair.far.qp, 1, &place);
  haul_send_wr batch[] = {good, good, good};
  batch[1].flags = 1u << 30;
  expect(haul_post_send(pair.near.qp, batch, 3, &posted), HAUL_ERR_INVALID, context, "flags is 0x40000000, and must be of HAUL_SEND_");
  if (posted != 1) {
    fail("%zu posted before the bad one", posted);
  }
  next_success(context, pair.far.cq);
  must(context, haul_mr_dereg(mr));
  if (arrived != 0) {
    fail("what was posted has not arrived");
  }
  haul_send_wr bad = good;
  bad.opcode = 1000;
  expect(haul_post_send(pair.near.qp, &bad, 1, NULL), HAUL_ERR_INVALID, context, "opcode is 0x3e8, and must be one of HAUL_WR_");
  bad = good;
  bad.reserved = 1;
  expect(haul_post_send(pair.near.qp, &bad, 1, NULL), HAUL_ERR_INVALID, context, "reserved of haul_send_wr is not 0");
  bad = (haul_send_wr){.opcode = HAUL_WR_SEND, .sges = many, .num_sge = 5};
  expect(haul_post_send(pair.near.qp, &bad, 1, NULL), HAUL_ERR_INVALID, context, "num_sge is 5, and must be at most 4");
  bad.flags = HAUL_SEND_INLINE;
  expect(haul_post_send(pair.near.qp, &bad, 1, NULL), HAUL_ERR_INVALID, context, "num_sge is 5, and must be at most 4");
  bad.sges = NULL;
  expect(haul_post_send(pair.near.qp, &bad, 1, NULL), HAUL_ERR_INVALID, context, "an array is NULL, and its length is 5");
  piece.len = HAUL_INLINE_MAX + 1;
  expect(haul_post_send(pair.near.qp, &good, 1, NULL), HAUL_ERR_INVALID, context,
         "the length of inline data is 4097, and must be at most 4096");
  expect(haul_post_send(pair.near.qp, NULL, 1, NULL), HAUL_ERR_INVALID, context, "array");
  must(context, haul_post_send(pair.near.qp, NULL, 0, &posted));

  haul_recv_wr receive = {.wr_id = 1, .reserved = 1};
  expect(haul_post_recv(pair.near.qp, &receive, 1, &posted), HAUL_ERR_INVALID, context, "reserved of haul_recv_wr is not 0");
  receive.reserved = 0;
  for (int i = 0; i < 128; i++) {
    must(context, haul_post_recv(pair.near.qp, &receive, 1, NULL));
  }
  expect(haul_post_recv(pair.near.qp, &receive, 1, &posted), HAUL_ERR_FULL, context, "poll completions");
  if (posted != 0) {
    fail("posted to a full queue");
  }
}

/* The peer does not want the connection, or is not there. */
static void refusals(void) {
  haul_context *context = pair.context;
  const struct sockaddr *address = (const struct sockaddr *)&pair.address;
  haul_qp *qp = make_qp(&pair, &pair.near, NULL);
  must(context, haul_connect(qp, address, sizeof pair.address, NULL, pair.near.events));
  haul_cm_event event = expect_event(context, pair.far.events, HAUL_CM_CONNECT_REQUEST);
  struct sockaddr_in peer;
  memcpy(&peer, &event.peer, sizeof peer);
  if (peer.sin_family != AF_INET || peer.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) {
    fail("a request from somewhere else");
  }
  must(context, haul_reject(event.request, "no", 2));
  event = expect_event(context, pair.near.events, HAUL_CM_REJECTED);
  if (event.private_data_len != 2 || memcmp(event.private_data, "no", 2) != 0) {
    fail("the words of the refusal are lost");
  }
  haul_qp_destroy(qp);

  struct sockaddr_in nobody = pair.address;
  nobody.sin_port = htons(1);
  qp = make_qp(&pair, &pair.near, NULL);
  must(context, haul_connect(qp, (struct sockaddr *)&nobody, sizeof nobody, NULL, pair.near.events));
  event = expect_event(context, pair.near.events, HAUL_CM_UNREACHABLE);
  if (event.blame != HAUL_BLAME_NETWORK || event.reason[0] == '\0') {
    fail("unreachable without a reason");
  }
  haul_qp_destroy(qp);

  /* An accept that fails rejects. */
  qp = make_qp(&pair, &pair.near, NULL);
  must(context, haul_connect(qp, address, sizeof pair.address, NULL, pair.near.events));
  event = expect_event(context, pair.far.events, HAUL_CM_CONNECT_REQUEST);
  expect(haul_accept(event.request, NULL, NULL), HAUL_ERR_INVALID, context, "haul_accept");
  expect_event(context, pair.near.events, HAUL_CM_REJECTED);
  haul_qp_destroy(qp);
}

/* A write with a key that the peer never gave away: the connection ends, and both ends know whose
 * fault it is. */
static void wrong_key(void) {
  uint64_t word = 1;
  haul_sge piece = {.addr = (uintptr_t)&word, .len = sizeof word};
  haul_send_wr write = {.wr_id = 1,
                        .opcode = HAUL_WR_RDMA_WRITE,
                        .flags = HAUL_SEND_SIGNALED | HAUL_SEND_INLINE,
                        .sges = &piece,
                        .num_sge = 1,
                        .rkey = 0x12345678};
  must(pair.context, haul_post_send(pair.near.qp, &write, 1, NULL));
  haul_cm_event near = expect_event(pair.context, pair.near.events, HAUL_CM_DISCONNECTED);
  haul_cm_event far = expect_event(pair.context, pair.far.events, HAUL_CM_DISCONNECTED);
  if (near.blame != HAUL_BLAME_PEER_COMPLAINS || far.blame != HAUL_BLAME_PEER) {
    fail("blame %u and %u: %s; %s", near.blame, far.blame, near.reason, far.reason);
  }
  haul_qp_info info = HAUL_QP_INFO_INIT;
  must(pair.context, haul_qp_query(pair.near.qp, &info));
  if (info.state != HAUL_QPS_ERR || info.reason[0] == '\0') {
    fail("state %u after an error: %s", info.state, info.reason);
  }
  printf("near: %s; far: %s\n", near.reason, far.reason);
  haul_wc wc;
  int flushed = 0;
  while (must(pair.context, haul_cq_poll(pair.near.cq, &wc, 1)) == 1) {
    flushed += wc.status == HAUL_WC_WR_FLUSH_ERR;
  }
  if (flushed < 128) {
    fail("%d receives were flushed of 128", flushed);
  }
}

/* What others still need stays until they are gone as well, and their connection goes on. */
static void any_order(void) {
  struct pair pair;
  haul_mr *mr;
  uint64_t words[2] = {0, 5};
  make_pair(&pair);
  must(pair.context, haul_mr_reg(pair.pd, words, sizeof words, HAUL_ACCESS_LOCAL_WRITE, &mr));
  make_and_join(&pair);
  haul_mr_info info = mr_info(pair.context, mr);
  haul_close(pair.context);
  haul_pd_destroy(pair.pd);
  haul_listener_destroy(pair.listener);
  haul_sge in = {.addr = info.addr, .len = 8, .lkey = info.lkey}, out = {.addr = info.addr + 8, .len = 8, .lkey = info.lkey};
  haul_recv_wr receive = {.wr_id = 1, .sges = &in, .num_sge = 1};
  haul_send_wr send = {.wr_id = 2, .opcode = HAUL_WR_SEND, .flags = HAUL_SEND_SIGNALED, .sges = &out, .num_sge = 1};
  must(NULL, haul_post_recv(pair.far.qp, &receive, 1, NULL));
  must(NULL, haul_post_send(pair.near.qp, &send, 1, NULL));
  next_success(NULL, pair.far.cq);
  if (words[0] != 5) {
    fail("a closed context has broken its connection");
  }
  haul_cm_channel_destroy(pair.near.events);
  haul_cm_channel_destroy(pair.far.events);
  haul_cq_destroy(pair.near.cq);
  haul_cq_destroy(pair.far.cq);
  must(NULL, haul_mr_dereg(mr));
  haul_qp_destroy(pair.near.qp);
  haul_qp_destroy(pair.far.qp);
}

/* A request that nobody answers is answered by the end of its channel. */
static void unanswered(void) {
  struct pair pair;
  make_pair(&pair);
  pair.near.qp = make_qp(&pair, &pair.near, NULL);
  must(pair.context, haul_connect(pair.near.qp, (struct sockaddr *)&pair.address, sizeof pair.address, NULL, pair.near.events));
  struct pollfd fd = {.fd = must(pair.context, haul_cm_channel_fd(pair.far.events)), .events = POLLIN};
  if (poll(&fd, 1, (int)(PATIENCE_NS / 1000000)) != 1) {
    fail("the request does not arrive");
  }
  haul_listener_destroy(pair.listener);
  haul_cm_channel_destroy(pair.far.events);
  pair.far.events = NULL;
  pair.listener = NULL;
  haul_cm_event event = HAUL_CM_EVENT_INIT;
  must(pair.context, haul_cm_channel_wait(pair.near.events, PATIENCE_NS, &event));
  if (event.type != HAUL_CM_REJECTED && event.type != HAUL_CM_UNREACHABLE) {
    fail("event %u for a request that nobody answered", event.type);
  }
  end_pair(&pair);
}

static void nothing_to_end(void) {
  haul_qp_destroy(NULL);
  haul_srq_destroy(NULL);
  haul_cq_destroy(NULL);
  haul_comp_channel_destroy(NULL);
  haul_cm_channel_destroy(NULL);
  haul_listener_destroy(NULL);
  haul_pd_destroy(NULL);
  haul_device_list_destroy(NULL);
  haul_close(NULL);
  must(NULL, haul_mr_dereg(NULL));
}

static haul_stream *make_streams(haul_context *context, haul_stream **far) {
  haul_stream_listener *listener;
  haul_stream *near;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  must(context, haul_stream_listen(context, (struct sockaddr *)&address, len, NULL, &listener));
  must(context, haul_stream_listener_address(listener, (struct sockaddr *)&address, &len));
  if (must(context, haul_stream_accept(listener, far)) != 0 || *far != NULL) {
    fail("nobody connected, and somebody came");
  }
  must(context, haul_stream_connect(context, (struct sockaddr *)&address, len, NULL, &near));
  if (must(context, haul_stream_accept_wait(listener, PATIENCE_NS, far)) != 1) {
    fail("the stream did not come");
  }
  haul_stream_listener_destroy(listener);
  must(context, haul_stream_wait(near, HAUL_STREAM_OPEN, PATIENCE_NS));
  return near;
}

static void streams(void) {
  haul_context *context;
  haul_stream *near, *far;
  struct sockaddr_in address = {.sin_family = AF_INET};
  haul_stream_options options = HAUL_STREAM_OPTIONS_INIT;
  char bytes[8] = "letters";
  expect(haul_stream_connect(pair.context, (struct sockaddr *)&address, sizeof address, NULL, &near), HAUL_ERR_UNSUPPORTED,
         pair.context, "byte streams");
  must(NULL, haul_open("soft-udt", NULL, &context));
  options.send_bytes = 1;
  expect(haul_stream_connect(context, (struct sockaddr *)&address, sizeof address, &options, &near), HAUL_ERR_INVALID, context,
         "send_bytes is 1, and must be at least 1048576");
  expect(haul_stream_connect(context, (struct sockaddr *)&address, 1, NULL, &near), HAUL_ERR_INVALID, context, "address");
  expect(haul_stream_rendezvous(context, (struct sockaddr *)&address, sizeof address, (struct sockaddr *)&address, sizeof address,
                                NULL, &near), HAUL_ERR_INVALID, context, "the local port is 0, and must be at least 1");
  near = make_streams(context, &far);
  expect(haul_stream_poll(near, 0), HAUL_ERR_INVALID, context, "wanted");
  expect(haul_stream_wait(near, 1u << 20, 0), HAUL_ERR_INVALID, context, "wanted is 0x100000, and must be of HAUL_STREAM_");
  expect(haul_stream_send(near, NULL, 1), HAUL_ERR_INVALID, context, "NULL");
  expect(haul_stream_recv(NULL, bytes, 1), HAUL_ERR_INVALID, NULL, "haul_stream_recv: the handle is NULL");
  if (must(context, haul_stream_recv(near, bytes, sizeof bytes)) != 0 || haul_stream_wait(near, HAUL_STREAM_READABLE, 0) != 0) {
    fail("nothing was sent, and something came");
  }
  /* An end that leaves without a word: what it sent is there, and then an error. */
  must(context, haul_stream_send(near, bytes, sizeof bytes));
  must(context, haul_stream_wait(near, HAUL_STREAM_SENT, PATIENCE_NS));
  haul_stream_destroy(near);
  must(context, haul_stream_wait(far, HAUL_STREAM_OVER, PATIENCE_NS));
  if (haul_stream_recv(far, bytes, sizeof bytes) != sizeof bytes) {
    fail("what had come is gone");
  }
  expect(haul_stream_recv(far, bytes, sizeof bytes), HAUL_ERR_DISCONNECTED, context, "closed");
  expect(haul_stream_send(far, bytes, sizeof bytes), HAUL_ERR_DISCONNECTED, context, "closed");
  haul_stream_destroy(far);
  /* Nothing goes behind an end. */
  near = make_streams(context, &far);
  must(context, haul_stream_shutdown(near));
  expect(haul_stream_send(near, bytes, sizeof bytes), HAUL_ERR_DISCONNECTED, context, "haul_stream_send");
  must(context, haul_stream_wait(far, HAUL_STREAM_READABLE, PATIENCE_NS));
  expect(haul_stream_recv(far, bytes, sizeof bytes), HAUL_ERR_ENDED, context, "ended");
  haul_close(context);
  haul_stream_destroy(far);
  haul_stream_destroy(near);
  haul_stream_destroy(NULL);
  haul_stream_listener_destroy(NULL);
}

int main(void) {
  without_a_device();
  make_pair(&pair);
  structures_of_other_versions();
  devices_and_providers();
  texts_of_any_length();
  arguments();
  make_and_join(&pair);
  posting();
  refusals();
  wrong_key();
  any_order();
  unanswered();
  nothing_to_end();
  streams();
  end_pair(&pair);
  printf("every error was reported\n");
  return 0;
}
