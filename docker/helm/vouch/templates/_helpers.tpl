{{- define "vouch.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "vouch.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: service
{{- end -}}

{{- define "vouch.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "vouch.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "vouch.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "vouch.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "vouch.claim" -}}
{{ .Values.bundle.existingClaim | default (printf "%s-bundles" (include "vouch.name" .)) }}
{{- end -}}

{{/* Not empty where pods write to the volume: they share one node, because SQLite shares a disk. */}}
{{- define "vouch.writes" -}}
{{- if and (eq .Values.bundle.mode "volume") (not .Values.bundle.readOnly) -}}true{{- end -}}
{{- end -}}

{{- define "vouch.check" -}}
{{- if not (or .Values.keys.secret .Values.anonymous) -}}
{{- fail "keys.secret is empty and anonymous is false: no client could use this service. Set keys.secret to a Secret with keys.json (vouch-keys create), or anonymous=true." -}}
{{- end -}}
{{- if and (eq .Values.bundle.mode "pull") (not .Values.bundle.source) -}}
{{- fail "bundle.mode is pull and bundle.source is empty: set it to the address of a bundle, such as s3://BUCKET/PREFIX, or set bundle.mode=volume." -}}
{{- end -}}
{{- if and (include "vouch.writes" .) (not (has .Values.bundle.accessMode (list "ReadWriteOnce" "ReadWriteOncePod"))) -}}
{{- fail (printf "bundle.accessMode is %s and items are written: SQLite loses writes on a network disk. Set accessMode=ReadWriteOnce, or readOnly=true, or keep items in Milvus (milvus.uri)." .Values.bundle.accessMode) -}}
{{- end -}}
{{- if and (eq .Values.bundle.accessMode "ReadWriteOncePod") (eq .Values.bundle.mode "volume") -}}
{{- fail "bundle.accessMode is ReadWriteOncePod, which lets no new pod start beside the old one. Set it to ReadWriteOnce." -}}
{{- end -}}
{{- if not (or (include "vouch.writes" .) .Values.extraVolumeMounts) -}}
{{- range list "VOUCH_GALLERIES" "VOUCH_FEEDBACK" -}}
{{- if get $.Values.settings . -}}
{{- fail (printf "settings.%s needs a volume that pods can write. Set bundle.mode=volume and bundle.readOnly=false, or add a volume (extraVolumes, extraVolumeMounts)." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.bundle.mode "pull" -}}
{{- range list "readOnly" "existingClaim" "storageClass" -}}
{{- if get $.Values.bundle . -}}
{{- fail (printf "bundle.%s has no effect in bundle.mode=pull, where pods have no volume of their own: remove it, or set bundle.mode=volume." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (gt (int (get .Values.settings "VOUCH_PROCESSES")) 1) (not (or .Values.redis.url .Values.secret)) -}}
{{- fail "settings.VOUCH_PROCESSES is above 1, and several processes need Redis: set redis.url, or write vouch_redis_url into the Secret of `secret`." -}}
{{- end -}}
{{- range list "VOUCH_REVIEW_REASONS" "VOUCH_QUERY_RETENTION_S" -}}
{{- if and (get $.Values.settings .) (not $.Values.settings.VOUCH_FEEDBACK) -}}
{{- fail (printf "settings.%s needs a file for reviews: set settings.VOUCH_FEEDBACK." .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.backup.enabled (or .Values.milvus.uri (not (include "vouch.writes" .))) -}}
{{- fail "backup.enabled backs up a writable volume (bundle.mode=volume). The source of pulled bundles and Milvus have backups of their own: set backup.enabled=false." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.trustedProxies) -}}
{{- fail "ingress.enabled is true and trustedProxies is empty: all clients would share the controller's address and its limits. Set it to the network of the controller's pods, such as 10.244.0.0/16." -}}
{{- end -}}
{{- end -}}

{{/* The containers run as in the compose file: no root, no capabilities, a read-only file system. */}}
{{- define "vouch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "vouch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* All pods that write run on one node, because they share SQLite's locks. */}}
{{- define "vouch.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- if include "vouch.writes" . -}}
{{- $key := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $labels := include "vouch.selector" . | fromYaml -}}
{{- $rule := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $pod := get $affinity "podAffinity" | default dict -}}
{{- $_ := set $pod $key (prepend (get $pod $key | default list) $rule) -}}
{{- $_ := set $affinity "podAffinity" $pod -}}
{{- end -}}
{{- toYaml $affinity -}}
{{- end -}}

{{/* Jobs on the volume run on the node of the pods that have mounted it, where there are some. */}}
{{- define "vouch.besideTheService" -}}
podAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "vouch.selector" . | nindent 12 }}
{{- end -}}

{{/* A container that runs vouch-build on the bundles; give it a dict of root, name and script. */}}
{{- define "vouch.operate" -}}
name: {{ .name }}
image: {{ include "vouch.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [sh, -euc]
args:
  - |
    {{- .script | nindent 4 }}
env:
  - { name: SOURCE, value: {{ .root.Values.bundle.source | quote }} }
  {{- if .root.Values.bundle.trust }}
  - { name: VOUCH_BUNDLE_KEYS, value: /trust/publisher.pub }
  {{- end }}
  {{- with .root.Values.settings.VOUCH_SIGNING_KEY }}
  - { name: VOUCH_SIGNING_KEY, value: {{ . | quote }} }
  {{- end }}
  {{- if .root.Values.secret }}
  - { name: VOUCH_SECRETS_DIR, value: /secrets }
  {{- end }}
  {{- with .root.Values.milvus.uri }}
  - { name: VOUCH_MILVUS_URI, value: {{ . | quote }} }
  {{- end }}
{{- with .root.Values.bundle.credentialsSecret }}
envFrom:
  - secretRef: { name: {{ . }} }
{{- end }}
securityContext:
  {{- include "vouch.containerSecurity" .root | nindent 2 }}
resources:
  {{- toYaml .root.Values.resources | nindent 2 }}
volumeMounts:
  - { name: bundles, mountPath: /bundles }
  - { name: tmp, mountPath: /tmp }
  {{- if .root.Values.bundle.trust }}
  - { name: trust, mountPath: /trust, readOnly: true }
  {{- end }}
  {{- if .root.Values.secret }}
  - { name: secrets, mountPath: /secrets, readOnly: true }
  {{- end }}
  {{- with .mounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "vouch.volumes" -}}
- name: bundles
  {{- if eq .Values.bundle.mode "volume" }}
  persistentVolumeClaim: { claimName: {{ include "vouch.claim" . }} }
  {{- else }}
  emptyDir: { sizeLimit: {{ .Values.bundle.size }} }
  {{- end }}
- name: tmp
  emptyDir: { medium: Memory, sizeLimit: 256Mi }
{{- if .Values.bundle.trust }}
- name: trust
  secret: { secretName: {{ .Values.bundle.trust }} }
{{- end }}
{{- if .Values.secret }}
- name: secrets
  secret: { secretName: {{ .Values.secret }} }
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
