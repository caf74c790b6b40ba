/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REPLY_SCRIPT_H
#define REPLY_SCRIPT_H

/* An input of fuzz_worker_reply: the first byte says what the reply answers, the rest is the reply. */
enum reply_to { REPLY_TO_DENSE, REPLY_TO_MOE, REPLY_TO_PIECE, REPLY_KINDS };

enum { REPLY_EPOCH = 5, REPLY_HIDDEN = 32, REPLY_ROWS = 3, REPLY_TOP_K = 2, REPLY_WIDTH = 64 };

#endif
