#include <haul.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

static haul_context *context;

static int must(int result) { /* negative is an error, with a line on what was wrong */
  char text[512];
  if (result < 0 && haul_last_error(context, text, sizeof text) > 0) {
    fprintf(stderr, "%s\n", text);
    exit(1);
  }
  return result;
}

struct end { haul_cq *cq; haul_qp *qp; haul_cm_channel *events; };

static void make(haul_pd *pd, struct end *end) { /* two processes do the same; here both ends are in one */
  haul_qp_init init = HAUL_QP_INIT;
  must(haul_cq_create(context, 256, NULL, 0, &end->cq));         /* ibv_create_cq */
  must(haul_cm_channel_create(context, &end->events));           /* rdma_create_event_channel */
  init.send_cq = init.recv_cq = end->cq;
  must(haul_qp_create(pd, &init, &end->qp));                     /* ibv_create_qp */
}

int main(void) {
  char memory[2][64] = {"hello, region", ""};
  haul_pd *pd;
  haul_mr *mr;
  haul_mr_info info = HAUL_MR_INFO_INIT;
  haul_listener *listener;
  haul_cm_event event = HAUL_CM_EVENT_INIT;
  struct end near, far;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  must(haul_open("soft", NULL, &context));                       /* ibv_open_device */
  must(haul_pd_create(context, &pd));                            /* ibv_alloc_pd */
  must(haul_mr_reg(pd, memory, sizeof memory, HAUL_ACCESS_LOCAL_WRITE | HAUL_ACCESS_REMOTE_WRITE, &mr));
  must(haul_mr_query(mr, &info));                                /* its keys and its address: tell the peer */
  make(pd, &near);
  make(pd, &far);
  must(haul_listen(context, (struct sockaddr *)&address, len, far.events, 8, &listener));
  must(haul_listener_address(listener, (struct sockaddr *)&address, &len));
  must(haul_connect(near.qp, (struct sockaddr *)&address, len, NULL, near.events)); /* rdma_connect */
  must(haul_cm_channel_wait(far.events, -1, &event));            /* HAUL_CM_CONNECT_REQUEST */
  must(haul_accept(event.request, far.qp, NULL));                /* rdma_accept */
  must(haul_cm_channel_wait(near.events, -1, &event));           /* HAUL_CM_ESTABLISHED */
  haul_sge piece = {.addr = info.addr, .len = sizeof memory[0], .lkey = info.lkey};
  haul_send_wr write = {.wr_id = 1, .opcode = HAUL_WR_RDMA_WRITE, .sges = &piece, .num_sge = 1,
                        .remote_addr = info.addr + sizeof memory[0], .rkey = info.rkey};
  haul_send_wr read = {.wr_id = 2, .opcode = HAUL_WR_RDMA_READ, .flags = HAUL_SEND_SIGNALED, .rkey = info.rkey};
  must(haul_post_send(near.qp, &write, 1, NULL));
  must(haul_post_send(near.qp, &read, 1, NULL));                 /* is complete when the Write before it is placed */
  haul_wc wc;
  must(haul_cq_wait(near.cq, -1, &wc, 1));                       /* ibv_poll_cq, then sleeps */
  printf("%s: %s\n", haul_wc_status_str(wc.status), memory[1]);
  haul_qp_destroy(near.qp), haul_qp_destroy(far.qp);             /* in any order */
  haul_mr_dereg(mr), haul_listener_destroy(listener), haul_pd_destroy(pd);
  haul_cq_destroy(near.cq), haul_cq_destroy(far.cq);
  haul_cm_channel_destroy(near.events), haul_cm_channel_destroy(far.events);
  haul_close(context);
  return wc.status != HAUL_WC_SUCCESS;
}
