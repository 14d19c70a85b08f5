{{- /* Names, labels and what several templates have in common. */ -}}

{{- define "tidegauge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* 40 characters at most: the longest suffix and what a StatefulSet adds to a pod's labels stay within 63. */ -}}
{{- define "tidegauge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tidegauge.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tidegauge.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- /* Objects outside any namespace: two releases in two namespaces must not want the same one. */ -}}
{{- define "tidegauge.clusterName" -}}
{{- printf "%s-%s" (include "tidegauge.fullname" .) (include "tidegauge.namespace" .) -}}
{{- end -}}

{{- /* dict "root" . "component" NAME: what selects the pods of a component; never changes over upgrades. */ -}}
{{- define "tidegauge.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tidegauge.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tidegauge.labels" -}}
{{ include "tidegauge.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* dict "root" . "image" VALUES "key" WHERE: registry/repository:tag, or @digest. */ -}}
{{- define "tidegauge.imageOf" -}}
{{- $registry := coalesce .root.Values.global.imageRegistry .image.registry .root.Values.image.registry -}}
{{- if not $registry -}}
{{- fail "image.registry is not set: Tidegauge publishes no images. Build and push them with scripts/release_images.sh, and set image.registry to your registry (docs/kubernetes.md)" -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s/%s@%s" $registry .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry .image.repository (coalesce .image.tag .root.Values.image.tag .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "tidegauge.image" -}}
{{- include "tidegauge.imageOf" (dict "root" . "image" .Values.image) -}}
{{- end -}}

{{- define "tidegauge.agentImage" -}}
{{- $image := .Values.image -}}
{{- if ne (empty $image.digest) (empty $image.agentDigest) -}}
{{- fail "image.digest and image.agentDigest go together: both images must be of one build, and a tag may move" -}}
{{- end -}}
{{- $of := dict "registry" $image.registry "repository" $image.agentRepository "tag" $image.tag "digest" $image.agentDigest -}}
{{- include "tidegauge.imageOf" (dict "root" . "image" $of) -}}
{{- end -}}

{{- define "tidegauge.probeImage" -}}
{{- include "tidegauge.imageOf" (dict "root" . "image" .Values.injection.image) -}}
{{- end -}}

{{- /* dict "root" . "component" NAME "values" VALUES. */ -}}
{{- define "tidegauge.serviceAccountName" -}}
{{- default (ternary (printf "%s-%s" (include "tidegauge.fullname" .root) .component) "default" .values.serviceAccount.create) .values.serviceAccount.name -}}
{{- end -}}

{{- /* Namespaces whose pods are never touched: without the own one the service could keep itself from starting. */ -}}
{{- define "tidegauge.excludedNamespaces" -}}
{{- concat (list "kube-system" (include "tidegauge.namespace" .)) .Values.injection.excludeNamespaces | uniq | toJson -}}
{{- end -}}

{{- define "tidegauge.tokenSecret" -}}
{{- default (printf "%s-token" (include "tidegauge.fullname" .)) .Values.head.token.existingSecret -}}
{{- end -}}

{{- /* The long name: nothing depends on the pod's search domains. Its address is asked for once, see head-services.yaml. */ -}}
{{- define "tidegauge.headHost" -}}
{{- printf "%s-head.%s.svc" (include "tidegauge.fullname" .) (include "tidegauge.namespace" .) -}}
{{- end -}}

{{- define "tidegauge.leaseName" -}}
{{- printf "%s-controller" (include "tidegauge.fullname" .) -}}
{{- end -}}

{{- define "tidegauge.certificateSecret" -}}
{{- default (printf "%s-webhook" (include "tidegauge.fullname" .)) .Values.injection.certificates.secretName -}}
{{- end -}}

{{- /* "true" where the controller serves the webhook. */ -}}
{{- define "tidegauge.webhook" -}}
{{- if eq .Values.injection.mode "webhook" -}}
{{- if not .Values.controller.enabled -}}
{{- fail "injection.mode is webhook, which the controller serves, but controller.enabled is false: choose injection.mode policy or none" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{- /* dict "root" . "component" NAME "values" VALUES: what every pod of ours says of itself before its containers.
  enableServiceLinks: Kubernetes would put TIDEGAUGE_HEAD_PORT and the like into the environment, which Tidegauge
  refuses as settings that do not exist. */ -}}
{{- define "tidegauge.podDefaults" -}}
enableServiceLinks: false
serviceAccountName: {{ include "tidegauge.serviceAccountName" . }}
{{- with concat .root.Values.global.imagePullSecrets .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A uid: not root, and the kubelet makes volumes and Secrets readable for it. */ -}}
{{- define "tidegauge.userOf" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Pod Security `restricted`: everything but the agents' pods. */ -}}
{{- define "tidegauge.restrictedPod" -}}
{{- include "tidegauge.userOf" "10001" -}}
{{- end -}}

{{- /* Agents share the nodes' pids with everybody, and a uid's processes may look into each other: this one is in the
  range that neither people nor distributions use (systemd.io/UIDS-GIDS). */ -}}
{{- define "tidegauge.agentUser" -}}
60949
{{- end -}}

{{- define "tidegauge.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* "true" where TLS and names are to stand before the pages of head and agents. */ -}}
{{- define "tidegauge.webAccess" -}}
{{- $web := .Values.webAccess -}}
{{- if $web.existingSecret -}}
{{- if and (ne $web.tls "none") (not (has "web.yml" $web.files)) -}}
{{- fail (printf "webAccess.tls is %s, which needs a web.yml, but webAccess.files has none: add it, or set webAccess.tls to none" $web.tls) -}}
{{- end -}}
true
{{- else if $web.certificateSecret -}}
{{- fail "webAccess.certificateSecret needs a web.yml: set webAccess.existingSecret to a Secret that has one (docs/kubernetes.md)" -}}
{{- end -}}
{{- end -}}

{{- /* "true" where the head takes tokens of this cluster. */ -}}
{{- define "tidegauge.kubernetesLogin" -}}
{{- if and .Values.webAccess.kubernetesLogin (not .Values.webAccess.open) }}true{{ end -}}
{{- end -}}

{{- /* "true" where the head's pages ask for a name: they do unless somebody says `open`. */ -}}
{{- define "tidegauge.asksNames" -}}
{{- $named := or (include "tidegauge.webAccess" .) (include "tidegauge.kubernetesLogin" .) -}}
{{- if and .Values.webAccess.open (include "tidegauge.webAccess" .) -}}
{{- fail "webAccess.open asks nobody for a name, but webAccess.existingSecret has names or a certificate: leave one of them out" -}}
{{- else if not (or $named .Values.webAccess.open) -}}
{{- fail "whoever reaches the head would see everybody's jobs: set webAccess.kubernetesLogin or webAccess.existingSecret, or webAccess.open if that is what you want" -}}
{{- end -}}
{{- if $named }}true{{ end -}}
{{- end -}}

{{- /* Where people find the pages: as they say, or by the Ingress or HTTPRoute, which have to agree. */ -}}
{{- define "tidegauge.publicUrl" -}}
{{- $hosts := list -}}
{{- $scheme := "https" -}}
{{- with .Values.head.ingress -}}
{{- if .enabled -}}
{{- $hosts = append $hosts (required "head.ingress.enabled needs head.ingress.host" .host) -}}
{{- if not .tlsSecret }}{{ $scheme = "http" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .Values.head.httpRoute -}}
{{- if .enabled -}}
{{- if not (and .parentRefs .hostnames) -}}
{{- fail "head.httpRoute.enabled needs head.httpRoute.parentRefs and head.httpRoute.hostnames" -}}
{{- end -}}
{{- $hosts = concat $hosts .hostnames -}}
{{- end -}}
{{- end -}}
{{- $said := .Values.publicUrl -}}
{{- if and $said $hosts -}}
{{- $host := regexReplaceAll ":[0-9]+$" (get (urlParse $said) "host") "" -}}
{{- if not (has $host $hosts) -}}
{{- fail (printf "publicUrl leads to %s, but the pages are at %s (head.ingress.host, head.httpRoute.hostnames): leave publicUrl empty, or name one of these" $host (join ", " $hosts)) -}}
{{- end -}}
{{- end -}}
{{- if $said }}{{ $said }}{{ else if $hosts }}{{ printf "%s://%s" $scheme (first $hosts) }}{{ end -}}
{{- end -}}

{{- /* What these pages speak: none, server or mutual. */ -}}
{{- define "tidegauge.tls" -}}
{{- ternary .Values.webAccess.tls "none" (eq (include "tidegauge.webAccess" .) "true") -}}
{{- end -}}

{{- define "tidegauge.scheme" -}}
{{- ternary "http" "https" (eq (include "tidegauge.tls" .) "none") -}}
{{- end -}}

{{- /* dict "root" . "port" NAME: how the kubelet asks. It shows no name, which /healthz does not want, and no client
  certificate: where one is wanted it can only see whether the port is open. */ -}}
{{- define "tidegauge.probe" -}}
{{- $tls := include "tidegauge.tls" .root -}}
{{- if eq $tls "mutual" -}}
tcpSocket: {port: {{ .port }}}
{{- else -}}
httpGet: {path: /healthz, port: {{ .port }}{{ if eq $tls "server" }}, scheme: HTTPS{{ end }}}
{{- end -}}
{{- end -}}

{{- /* One folder of one or two Secrets, replaced as a whole. Never mount single files of it (subPath), those stay as
  they were. */ -}}
{{- define "tidegauge.webVolume" -}}
- name: web
  projected:
    # Tokens that others may read are refused; root's with the pod's group are not.
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .Values.webAccess.existingSecret }}
      {{- with .Values.webAccess.certificateSecret }}
      - secret:
          name: {{ . }}
      {{- end }}
{{- end -}}

{{- define "tidegauge.webMount" -}}
- name: web
  mountPath: /etc/tidegauge/web
  readOnly: true
{{- end -}}

{{- /* `helm test` asks the head as anybody would: it needs what they need, and has no client certificate. A token of this
  cluster it gets from the kubelet, an authority to trust it does not. */ -}}
{{- define "tidegauge.tests" -}}
{{- $tls := include "tidegauge.tls" . -}}
{{- $hasWayIn := or (not (include "tidegauge.asksNames" .)) (include "tidegauge.kubernetesLogin" .) -}}
{{- if and .Values.tests.enabled (ne $tls "mutual") (or .Values.tests.existingSecret (and $hasWayIn (eq $tls "none"))) -}}
true
{{- end -}}
{{- end -}}

{{- /* The settings of agents: without those that only the head reads, whose change then makes no new pods on all nodes. */ -}}
{{- define "tidegauge.agentSettings" -}}
{{- $settings := include "tidegauge.settings" . | fromYaml -}}
{{- $heads := "^(database_url|keep_(incidents|jobs)_.*|user_pseudonyms|policy_file|incident_severity|ray_jobs_.*|kubernetes_(kubeconfig|namespaces|kinds|requeue|resubmit|memory_policies|shared_gpu_replicas|controller|login|login_audience)|munge_.*|proxy_user_.*|trusted_proxies|public_url|contact|grafana_.*|alertmanager_url|notify_token_file|slack_.*|mail_.*|efficiency_mail_.*)$" -}}
{{- range $name := keys $settings -}}
{{- if regexMatch $heads $name }}{{ $settings = omit $settings $name }}{{ end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- /* As text. What is no YAML, or no mapping, would leave the head without the policy that was meant. */ -}}
{{- define "tidegauge.policy" -}}
{{- $given := .Values.policy -}}
{{- if not (kindIs "map" $given) -}}
{{- $given = fromYaml .Values.policy -}}
{{- with $given.Error -}}
{{- fail (printf "policy is not a YAML mapping: %s" .) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString $given.mode) "act") (not .Values.workloads.actions) -}}
{{- fail "policy has mode: act, and workloads.actions is false: no role may change a workload. Set workloads.actions=true" -}}
{{- end -}}
{{- ternary (toYaml .Values.policy) (toString .Values.policy) (kindIs "map" .Values.policy) -}}
{{- end -}}

{{- /* Settings of the service as one YAML file. What the chart's own objects rest on is not for `settings` to change. */ -}}
{{- define "tidegauge.settings" -}}
{{- $ours := dict
  "cluster" .Values.cluster
  "listen_host" "0.0.0.0"
  "metrics_port" 9494
  "api_port" 9495
  "engine_port" 6399
  "engine_node_ports" "6400-6431"
  "notify_port" 9496
  "slurm" "off"
  "kubernetes" "on"
  "kubernetes_kinds" (join "," .Values.workloads.kinds)
  "kubernetes_requeue" .Values.workloads.requeue
  "kubernetes_controller" (printf "%s/%s" (include "tidegauge.namespace" .) (include "tidegauge.leaseName" .))
  "policy_file" "/etc/tidegauge/policy/policy.yaml"
-}}
{{- if not .Values.policy }}{{ $ours = omit $ours "policy_file" }}{{ end -}}
{{- with .Values.rbac.namespaces }}{{ $_ := set $ours "kubernetes_namespaces" (join "," .) }}{{ end -}}
{{- if .Values.memoryPolicies.enabled }}{{ $_ := set $ours "kubernetes_memory_policies" true }}{{ end -}}
{{- if .Values.nodeConditions.enabled }}{{ $_ := set $ours "kubernetes_node_conditions" true }}{{ end -}}
{{- with .Values.injection.sharedGpuReplicas }}{{ $_ := set $ours "kubernetes_shared_gpu_replicas" . }}{{ end -}}
{{- with include "tidegauge.publicUrl" . }}{{ $_ := set $ours "public_url" . }}{{ end -}}
{{- with .Values.grafanaUrl }}{{ $_ := set $ours "grafana_url" . }}{{ end -}}
{{- if include "tidegauge.webAccess" . -}}
{{- $web := .Values.webAccess -}}
{{- if has "web.yml" $web.files }}{{ $_ := set $ours "web_config_file" "/etc/tidegauge/web/web.yml" }}{{ end -}}
{{- if has "api-tokens" $web.files }}{{ $_ := set $ours "api_tokens_file" "/etc/tidegauge/web/api-tokens" }}{{ end -}}
{{- end -}}
{{- if include "tidegauge.kubernetesLogin" . -}}
{{- $_ := set $ours "kubernetes_login" true -}}
{{- with .Values.webAccess.kubernetesLoginAudience }}{{ $_ := set $ours "kubernetes_login_audience" . }}{{ end -}}
{{- end -}}
{{- if include "tidegauge.asksNames" . -}}
{{- $_ := set $ours "api_admins" (join "," .Values.webAccess.admins) -}}
{{- $_ := set $ours "metrics_readers" (join "," .Values.webAccess.metricsReaders) -}}
{{- end -}}
{{- range $name, $_ := .Values.settings -}}
{{- if or (hasKey $ours $name) (has $name (list "state_dir" "hostname" "policy_file" "opener_socket" "kubernetes_pod_resources" "run_dir" "public_url" "grafana_url" "kubernetes_namespaces" "kubernetes_shared_gpu_replicas")) -}}
{{- fail (printf "settings.%s is set by the chart itself: use the chart's own value for it (README.md)" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.settings.engine_tls (not .Values.settings.engine_tls_cert_file) -}}
{{- fail "settings.engine_tls: agents call the address of the Service, which the certificate that the head makes for itself does not name (docs/kubernetes.md)" -}}
{{- end -}}
{{- merge $ours .Values.settings | toYaml -}}
{{- end -}}
