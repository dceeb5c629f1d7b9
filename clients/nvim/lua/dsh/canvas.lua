--- Lines of the sidebar in its buffer, which nobody else writes.
local M = {}

local api = vim.api
local ns = api.nvim_create_namespace("dsh.view")

--- Text in the colours of Normal needs none, and would hide those of the cursor's line.
---@param group string
---@return boolean
local function is_plain(group)
  return vim.fn.synIDtrans(vim.fn.hlID(group)) == vim.fn.hlID("Normal")
end

---@param buf integer
---@param at integer line, from 0
---@param line dsh.Line
local function colour(buf, at, line)
  for _, span in ipairs(line.spans) do
    if span[2] > span[1] and not is_plain(span[3]) then
      api.nvim_buf_set_extmark(buf, ns, at, span[1], {
        end_col = span[2],
        hl_group = span[3],
        priority = span[3] == "DshMatch" and 200 or 100,
      })
    end
  end
  if #line.marks > 0 then
    api.nvim_buf_set_extmark(buf, ns, at, 0, {
      virt_text = line.marks,
      virt_text_pos = "right_align",
      hl_mode = line.matched and "replace" or "combine", -- else a match below would shine through
    })
  end
end

---@param buf integer
---@param from integer line, from 0
---@param to integer exclusive
---@param texts string[]
local function set(buf, from, to, texts)
  vim.bo[buf].modifiable = true
  api.nvim_buf_set_lines(buf, from, to, false, texts)
  vim.bo[buf].modifiable = false
end

--- Put lines in the place of others.
---@param buf integer
---@param from integer line, from 0
---@param to integer exclusive
---@param lines dsh.Line[]
function M.put(buf, from, to, lines)
  api.nvim_buf_clear_namespace(buf, ns, from, to)
  set(
    buf,
    from,
    to,
    vim.tbl_map(function(line)
      return line.text
    end, lines)
  )
  for n, line in ipairs(lines) do
    colour(buf, from + n - 1, line)
  end
end

---@param count integer
---@return string[]
local function blank(count)
  local lines = {}
  for n = 1, count do
    lines[n] = ""
  end
  return lines
end

--- Make lines blank.
---@param buf integer
---@param from integer line, from 0
---@param to integer exclusive; lines past the end of the buffer do not matter
function M.blank(buf, from, to)
  to = math.min(to, api.nvim_buf_line_count(buf))
  if from < to then
    api.nvim_buf_clear_namespace(buf, ns, from, to)
    set(buf, from, to, blank(to - from))
  end
end

--- Give the buffer so many lines: at its end some are taken away, or blank ones come.
---@param buf integer
---@param count integer
function M.resize(buf, count)
  local now = api.nvim_buf_line_count(buf)
  if now > count then
    set(buf, count, -1, {})
  elseif now < count then
    set(buf, -1, -1, blank(count - now))
  end
end

return M
