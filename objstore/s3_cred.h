/* s3_cred.h: where the access key comes from, as with every AWS tool.
 *
 * Looked at in this order; the first that has something is it:
 *   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (not when a profile was named
 *      in the configuration)
 *   2. AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN: exchanged at STS
 *   3. the profile in ~/.aws/credentials, then in ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE,
 *      AWS_CONFIG_FILE; profile from the configuration, AWS_PROFILE, or "default"); read again every
 *      ten seconds of use and after a refusal
 *   4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI
 *   5. the instance metadata service, version 2 (unless AWS_EC2_METADATA_DISABLED is true)
 * The environment is read once, by s3_cred_new. Temporary keys are fetched on the HTTP loop, and
 * again five minutes before they expire; meanwhile the old one is used as long as it is valid.
 *
 * All functions but s3_cred_new and _free run on the loop thread. Memory that held a secret is
 * cleared before it is freed. No secret is ever part of a message.
 */
#ifndef SLUICE_OBJSTORE_S3_CRED_H
#define SLUICE_OBJSTORE_S3_CRED_H

#include "objstore/http.h"
#include "objstore/s3_sign.h"

struct s3_cred;

/* profile NULL: from the environment. region: for STS. NULL when memory has run out. */
struct s3_cred *s3_cred_new(struct http *http, const char *profile, const char *region);

/* After http_close: nothing is being fetched then. NULL is allowed. */
void s3_cred_free(struct s3_cred *c);

/* The key to sign with now. 0; HTTP_HOLD: it is being fetched, http_resume will be called; -EACCES:
 * there is none, and `why` names the places looked at. *transient: asking again may help. */
int s3_cred_get(struct s3_cred *c, struct s3_key *ret, bool *transient, char *why, size_t why_cap);

/* The store refused this key as unknown or expired. True: another one is, or may soon be, at hand,
 * so the request is worth repeating. Says so once for each key. */
bool s3_cred_refused(struct s3_cred *c, const struct s3_key *key);

/* A setting of the profile in ~/.aws/config ("region", "endpoint_url"). False: not there. Reads the
 * file. Any thread. */
bool s3_profile_setting(const char *profile, const char *name, char *out, size_t cap);

/* ---- pure parts, public for the tests ---- */

/* Value of `name` in section [section] of an INI text; indented (nested) lines are skipped. */
bool s3_ini_get(const char *text, const char *section, const char *name, char *out, size_t cap);

/* A string member of a flat JSON object. False: not there, not a string, or malformed. */
bool s3_json_string(const char *text, const char *name, char *out, size_t cap);

#endif
