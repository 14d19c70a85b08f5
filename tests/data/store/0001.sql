BEGIN TRANSACTION;
CREATE TABLE counters (
	subject TEXT NOT NULL,
	name TEXT NOT NULL,
	outcome TEXT NOT NULL,
	value BIGINT NOT NULL,
	PRIMARY KEY (subject, name, outcome)
);
INSERT INTO "counters" VALUES('last_number','','',3);
INSERT INTO "counters" VALUES('incidents','leak','',1);
INSERT INTO "counters" VALUES('actions','requeue','done',1);
CREATE TABLE decisions (
	seq INTEGER NOT NULL,
	decision_id TEXT NOT NULL,
	incident_number INTEGER NOT NULL,
	action TEXT NOT NULL,
	disposition TEXT NOT NULL,
	status TEXT NOT NULL,
	decided_s DOUBLE NOT NULL,
	started_s DOUBLE,
	finished_s DOUBLE,
	outcome TEXT,
	detail TEXT,
	starts INTEGER NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (seq),
	UNIQUE (decision_id)
);
INSERT INTO "decisions" VALUES(1,'3:leak:0:1',3,'requeue','do','finished',1800000000.25,1800000001.25,1800000002.25,'done','started again',1,'{"decision_id":"3:leak:0:1","decided_s":1800000000.25,"action":"requeue","disposition":"do","target":{"job":{"job_id":"4711","attempt":0,"uid":1001},"scheduler":"local","incarnation":"0@1800000000.0","ranks":[{"rank":0,"node_id":"engine-0","process":{"pid":1000,"start_ticks":5000},"step":200},{"rank":1,"node_id":"engine-0","process":{"pid":1001,"start_ticks":5001},"step":200}],"handle":{"pid":900,"start_ticks":4000}},"incident":{"number":3,"key":{"job":{"job_id":"4711","attempt":0,"uid":1001},"cause":"leak"},"state":"open","severity":"critical","user_name":"ada","job_name":"llm-pretrain","scheduler":"local","world_size":2,"findings":[{"rank":1,"hostname":"node0","node_id":"engine-0","process":{"pid":1001,"start_ticks":5001},"gpu":1,"uuid":"GPU-00000001-1111-2222-3333-444444444444","step":200,"verdict":{"state":"leak","severity":"critical","signal":"allocated","cause":"tensors_kept","onset_step":40,"suspect_step":80,"alarm_step":120,"bytes_per_step":{"low":12058624.0,"likely":12582912.0,"high":13107200.0},"bytes_per_second":{"low":115343360.0,"likely":125829120.0,"high":136314880.0},"grown_bytes":1006632960,"steps_to_oom":{"low":8000.0,"likely":10000.0,"high":13000.0},"seconds_to_oom":{"low":840.0,"likely":1080.0,"high":1320.0}},"allocated_bytes":64424509440,"reserved_bytes":66571993088,"nontorch_bytes":734003200,"limit_bytes":85899345920,"oom":null}],"common":false,"opened_unix_s":1800000000.25,"updated_unix_s":1800000000.25,"onset_step":40,"bytes_per_step":{"low":12058624.0,"likely":12582912.0,"high":13107200.0},"seconds_to_oom":{"low":840.0,"likely":1080.0,"high":"Infinity"},"grown_bytes":1006632960,"worst_severity":"critical","easing_since_unix_s":null,"recovering_since_unix_s":null,"closed_unix_s":null,"closure":null,"flaps":0,"stale":false,"explanation":null,"snapshots":[],"reports":[]},"facts":{"target":{"job":{"job_id":"4711","attempt":0,"uid":1001},"scheduler":"local","incarnation":"0@1800000000.0","ranks":[{"rank":0,"node_id":"engine-0","process":{"pid":1000,"start_ticks":5000},"step":200},{"rank":1,"node_id":"engine-0","process":{"pid":1001,"start_ticks":5001},"step":200}],"handle":{"pid":900,"start_ticks":4000}},"scheduler_facts":{"incarnation":"0@1800000000.0","running":true,"requeueable":true,"exempt":false,"restarts":0,"account":"physics","partition":"gpu","namespace":"team-a","qos":"normal","started_unix_s":1799996400.25,"ends_unix_s":null,"gpu_share":null,"can":["annotate","cancel","cap","checkpoint","hold","notify","requeue"],"handle":{"pid":900,"start_ticks":4000}},"running":true,"stale":false,"world_size":2,"user_name":"ada","job_name":"llm-pretrain","checkpoint":"callback","shared_gpu":false,"torch_version":"2.11.0","alloc_conf":null,"limit_fraction":null,"cap_fraction":null,"cap_explanation":null,"jobs_running":20},"rule":"leak","rung":0,"attempt":1,"reason":"rank 1 of job 4711 leaks 12 MiB a step","parameters":{},"brake":null,"mode":"act"}');
CREATE TABLE incident_changes (
	seq INTEGER NOT NULL,
	number INTEGER NOT NULL,
	kind TEXT NOT NULL,
	at_s DOUBLE NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (seq),
	FOREIGN KEY(number) REFERENCES incidents (number) ON DELETE CASCADE
);
INSERT INTO "incident_changes" VALUES(1,3,'opened',1800000000.25,'{"number":3,"key":{"job":{"job_id":"4711","attempt":0,"uid":1001},"cause":"leak"},"state":"open","severity":"critical","user_name":"ada","job_name":"llm-pretrain","scheduler":"local","world_size":2,"findings":[{"rank":1,"hostname":"node0","node_id":"engine-0","process":{"pid":1001,"start_ticks":5001},"gpu":1,"uuid":"GPU-00000001-1111-2222-3333-444444444444","step":200,"verdict":{"state":"leak","severity":"critical","signal":"allocated","cause":"tensors_kept","onset_step":40,"suspect_step":80,"alarm_step":120,"bytes_per_step":{"low":12058624.0,"likely":12582912.0,"high":13107200.0},"bytes_per_second":{"low":115343360.0,"likely":125829120.0,"high":136314880.0},"grown_bytes":1006632960,"steps_to_oom":{"low":8000.0,"likely":10000.0,"high":13000.0},"seconds_to_oom":{"low":840.0,"likely":1080.0,"high":1320.0}},"allocated_bytes":64424509440,"reserved_bytes":66571993088,"nontorch_bytes":734003200,"limit_bytes":85899345920,"oom":null}],"common":false,"opened_unix_s":1800000000.25,"updated_unix_s":1800000000.25,"onset_step":40,"bytes_per_step":{"low":12058624.0,"likely":12582912.0,"high":13107200.0},"seconds_to_oom":{"low":840.0,"likely":1080.0,"high":"Infinity"},"grown_bytes":1006632960,"worst_severity":"critical","easing_since_unix_s":null,"recovering_since_unix_s":null,"closed_unix_s":null,"closure":null,"flaps":0,"stale":false,"explanation":null,"snapshots":[],"reports":[]}');
CREATE TABLE incidents (
	number INTEGER NOT NULL,
	job_id TEXT NOT NULL,
	attempt BIGINT NOT NULL,
	uid BIGINT NOT NULL,
	cause TEXT NOT NULL,
	state TEXT NOT NULL,
	severity TEXT NOT NULL,
	user_name TEXT NOT NULL,
	opened_s DOUBLE NOT NULL,
	updated_s DOUBLE NOT NULL,
	closed_s DOUBLE,
	value TEXT NOT NULL,
	PRIMARY KEY (number)
);
INSERT INTO "incidents" VALUES(3,'4711',0,1001,'leak','open','critical','ada',1800000000.25,1800000000.25,NULL,'{"number":3,"key":{"job":{"job_id":"4711","attempt":0,"uid":1001},"cause":"leak"},"state":"open","severity":"critical","user_name":"ada","job_name":"llm-pretrain","scheduler":"local","world_size":2,"findings":[{"rank":1,"hostname":"node0","node_id":"engine-0","process":{"pid":1001,"start_ticks":5001},"gpu":1,"uuid":"GPU-00000001-1111-2222-3333-444444444444","step":200,"verdict":{"state":"leak","severity":"critical","signal":"allocated","cause":"tensors_kept","onset_step":40,"suspect_step":80,"alarm_step":120,"bytes_per_step":{"low":12058624.0,"likely":12582912.0,"high":13107200.0},"bytes_per_second":{"low":115343360.0,"likely":125829120.0,"high":136314880.0},"grown_bytes":1006632960,"steps_to_oom":{"low":8000.0,"likely":10000.0,"high":13000.0},"seconds_to_oom":{"low":840.0,"likely":1080.0,"high":1320.0}},"allocated_bytes":64424509440,"reserved_bytes":66571993088,"nontorch_bytes":734003200,"limit_bytes":85899345920,"oom":null}],"common":false,"opened_unix_s":1800000000.25,"updated_unix_s":1800000000.25,"onset_step":40,"bytes_per_step":{"low":12058624.0,"likely":12582912.0,"high":13107200.0},"seconds_to_oom":{"low":840.0,"likely":1080.0,"high":"Infinity"},"grown_bytes":1006632960,"worst_severity":"critical","easing_since_unix_s":null,"recovering_since_unix_s":null,"closed_unix_s":null,"closure":null,"flaps":0,"stale":false,"explanation":null,"snapshots":[],"reports":[]}');
CREATE TABLE tidegauge_schema (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT tidegauge_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tidegauge_schema" VALUES('0001');
CREATE UNIQUE INDEX incidents_one_open_per_key ON incidents (job_id, attempt, uid, cause) WHERE closed_s IS NULL;
CREATE INDEX incidents_by_end ON incidents (closed_s);
CREATE INDEX incident_changes_by_number ON incident_changes (number, seq);
CREATE INDEX incident_changes_by_time ON incident_changes (at_s);
CREATE INDEX decisions_by_time ON decisions (decided_s);
CREATE INDEX decisions_by_incident ON decisions (incident_number);
CREATE INDEX decisions_by_status ON decisions (status);
COMMIT;
