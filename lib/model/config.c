/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config.h"
#include "model/checkpoint.h"
#include "model/chat.h"
#include "model/tokenizer.h"
