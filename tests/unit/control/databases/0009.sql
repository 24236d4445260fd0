BEGIN TRANSACTION;
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at_us BIGINT NOT NULL, 
	request_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(16) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	peer VARCHAR(64) NOT NULL, 
	route VARCHAR(64) NOT NULL, 
	sandbox VARCHAR(64), 
	status INTEGER NOT NULL
);
INSERT INTO "audit" VALUES(7,1700000000000000,'req-x','abcdefghijkl','default','127.0.0.1','create_sandbox','sb-aaaaaaaaaaaaaaaaaaaa',201);
CREATE TABLE builds (
	id VARCHAR(23) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	tag VARCHAR(63) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	digest VARCHAR(64), 
	reason VARCHAR, 
	created_us BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "builds" VALUES('bd-0123456789abcdef','default','mine','latest','building',NULL,NULL,1700000000000000);
CREATE TABLE control_secrets (
	name VARCHAR(32) NOT NULL, 
	value BLOB NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "control_secrets" VALUES('e2b',X'00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF');
CREATE TABLE e2b_sandboxes (
	sandbox VARCHAR(23) NOT NULL, 
	extras JSON NOT NULL, 
	PRIMARY KEY (sandbox)
);
INSERT INTO "e2b_sandboxes" VALUES('sb-aaaaaaaaaaaaaaaaaaaa','{"made": true, "template": "base"}');
CREATE TABLE e2b_templates (
	tenant VARCHAR(39) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	doc JSON NOT NULL, 
	PRIMARY KEY (tenant, name)
);
INSERT INTO "e2b_templates" VALUES('default','mine','{}');
CREATE TABLE event_floors (
	tenant VARCHAR(39) NOT NULL, 
	pruned BIGINT NOT NULL, 
	PRIMARY KEY (tenant)
);
INSERT INTO "event_floors" VALUES('default',1000000);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	tenant VARCHAR(39) NOT NULL, 
	sandbox VARCHAR(23) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	at_us BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	payload JSON NOT NULL
);
INSERT INTO "events" VALUES(1000001,'default','sb-aaaaaaaaaaaaaaaaaaaa','phase',1700000001000000,3,'{"phase": "running", "from_phase": "preparing"}');
CREATE TABLE former (
	sandbox VARCHAR(23) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	ended_us BIGINT NOT NULL, 
	PRIMARY KEY (sandbox)
);
INSERT INTO "former" VALUES('sb-cccccccccccccccccccc','acme',1700000050000000);
CREATE TABLE idempotency (
	tenant VARCHAR(39) NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	digest BLOB NOT NULL, 
	sandbox VARCHAR(23) NOT NULL, 
	created_us BIGINT NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
INSERT INTO "idempotency" VALUES('default','once',X'0000000000000000000000000000000000000000000000000000000000000000','sb-aaaaaaaaaaaaaaaaaaaa',1700000000000000);
CREATE TABLE keys (
	id VARCHAR(16) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	digest BLOB NOT NULL, 
	created_us BIGINT NOT NULL, 
	revoked_us BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "keys" VALUES('abcdefghijkl','default','admin','first start',X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',1700000000000000,NULL);
CREATE TABLE policies (
	tenant VARCHAR(39) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	source VARCHAR(32) NOT NULL, 
	revision BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	rules BIGINT NOT NULL, 
	open BOOLEAN NOT NULL, 
	updated_us BIGINT NOT NULL, 
	PRIMARY KEY (tenant, name)
);
INSERT INTO "policies" VALUES('default','agents','0123456789abcdef0123456789abcdef',3,13,0,0,1700000002000000);
CREATE TABLE policy_layers (
	tenant VARCHAR(39) NOT NULL, 
	source VARCHAR(32) NOT NULL, 
	default_name VARCHAR(63), 
	permits JSON NOT NULL, 
	revision BIGINT NOT NULL, 
	PRIMARY KEY (tenant)
);
INSERT INTO "policy_layers" VALUES('acme','',NULL,'["open"]',1);
CREATE TABLE policy_texts (
	digest VARCHAR(32) NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "policy_texts" VALUES('0123456789abcdef0123456789abcdef',X'7B2276657273696F6E223A317D');
CREATE TABLE quotas (
	tenant VARCHAR(39) NOT NULL, 
	quota JSON NOT NULL, 
	PRIMARY KEY (tenant)
);
INSERT INTO "quotas" VALUES('acme','{"sandboxes": 2}');
CREATE TABLE sandboxes (
	id VARCHAR(23) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	spec JSON NOT NULL, 
	template VARCHAR(63) NOT NULL, 
	metadata JSON NOT NULL, 
	desired VARCHAR(16) NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	reason VARCHAR, 
	isolation VARCHAR(64) NOT NULL, 
	generation BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	created_us BIGINT NOT NULL, 
	expires_us BIGINT, 
	ended_us BIGINT, 
	oom_kills BIGINT NOT NULL, policy_name VARCHAR(63), policy_source VARCHAR(32) NOT NULL DEFAULT '', policy_bytes BIGINT NOT NULL DEFAULT 0, policy_digest VARCHAR(32) NOT NULL DEFAULT '', policy_generation BIGINT NOT NULL DEFAULT 0, policy_open BOOLEAN NOT NULL DEFAULT 0, policy_applied BIGINT NOT NULL DEFAULT 0, policy_state VARCHAR(16) NOT NULL DEFAULT 'applied', policy_reason VARCHAR, wish VARCHAR(64) NOT NULL DEFAULT '', rest VARCHAR(16) NOT NULL DEFAULT '', rest_reason VARCHAR, start VARCHAR(16) NOT NULL DEFAULT '', parent VARCHAR(23), snapshot_bytes BIGINT NOT NULL DEFAULT 0, checkpoints BIGINT NOT NULL DEFAULT 0, 
	PRIMARY KEY (id)
);
INSERT INTO "sandboxes" VALUES('sb-aaaaaaaaaaaaaaaaaaaa','default','{"template": "base", "cpus": 1, "memory_mib": 256, "disk_mib": 2048, "env": {"A": "b"}, "metadata": {"who": "me"}, "ttl_seconds": 3600}','base','{"who": "me"}','running','running',NULL,'emulated (development only)',3,3,1700000000000000,1700003600000000,NULL,0,NULL,'',0,'',0,0,0,'applied',NULL,'suspend','request',NULL,'cold',NULL,33554432,1);
INSERT INTO "sandboxes" VALUES('sb-bbbbbbbbbbbbbbbbbbbb','acme','{"template": "base", "cpus": 1, "memory_mib": 512, "disk_mib": 2048, "env": {}, "metadata": {}, "ttl_seconds": 3600}','base','{}','gone','gone','deleted by request','emulated (development only)',1,5,1700000000000001,1700003600000001,1700000100000000,0,NULL,'',0,'',0,0,0,'applied',NULL,'','',NULL,'',NULL,0,0);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
INSERT INTO "schema_version" VALUES(2);
INSERT INTO "schema_version" VALUES(3);
INSERT INTO "schema_version" VALUES(4);
INSERT INTO "schema_version" VALUES(5);
INSERT INTO "schema_version" VALUES(6);
INSERT INTO "schema_version" VALUES(7);
INSERT INTO "schema_version" VALUES(8);
INSERT INTO "schema_version" VALUES(9);
CREATE TABLE template_disks (
	tenant VARCHAR(39) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	used_mib BIGINT NOT NULL, 
	PRIMARY KEY (tenant, digest)
);
INSERT INTO "template_disks" VALUES('default','0123456789abcdef0123456789abcdef',300);
CREATE TABLE template_names (
	tenant VARCHAR(39) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	tag VARCHAR(63) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	created_us BIGINT NOT NULL, 
	PRIMARY KEY (tenant, name, tag)
);
INSERT INTO "template_names" VALUES('default','mine','latest','0123456789abcdef0123456789abcdef',1700000000000000);
CREATE TABLE webhooks (
	id VARCHAR(23) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	url VARCHAR(2048) NOT NULL, 
	kinds JSON, 
	secret VARCHAR(128) NOT NULL, 
	cursor BIGINT NOT NULL, 
	delivered BIGINT NOT NULL, 
	created_us BIGINT NOT NULL, 
	failing_us BIGINT, 
	last_error VARCHAR, 
	PRIMARY KEY (id)
);
INSERT INTO "webhooks" VALUES('wh-aaaaaaaaaaaaaaaaaaaa','default','https://example.com/hook','["deleted"]','0123456789abcdef',1000000,3,1700000000000000,NULL,NULL);
CREATE INDEX former_by_end ON former (ended_us);
CREATE INDEX idempotency_by_age ON idempotency (created_us);
CREATE INDEX sandboxes_by_tenant ON sandboxes (tenant, created_us, id);
CREATE INDEX sandboxes_by_end ON sandboxes (ended_us);
CREATE INDEX events_by_tenant ON events (tenant, id);
CREATE INDEX audit_by_tenant ON audit (tenant, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',1000001);
INSERT INTO "sqlite_sequence" VALUES('audit',7);
COMMIT;
